# SPDX-License-Identifier: Apache-2.0
"""The ops on logits that are split by vocabulary over the ranks of a process group.

Every rank calls the same function with the same arguments, except for its own slice of the rows. Every rank gets all
results, bit for bit those of the op of the same name on whole rows. Ranks exchange either sums of chunks, or the rows
themselves, so that each rank has whole rows for its share of the requests (docs/sharded.md).
"""

from specdec_kernels.distributed.ops import kseq_rho, row_gap, row_stats, sample, verify_chain, verify_tree
from specdec_kernels.distributed.shards import Shards, Traffic

__all__ = ["Shards", "Traffic", "kseq_rho", "row_gap", "row_stats", "sample", "verify_chain", "verify_tree"]
