# SPDX-License-Identifier: Apache-2.0
"""Verification where no rank holds a row: logits split by vocabulary over the ranks of a process group.

Every rank calls the same function with the same arguments, its own slice of the rows apart, and every rank gets all
results: bit for bit those of the op of the same name on whole rows. Ranks tell each other records of chunks, never a
row (docs/sharded.md).
"""

from specdec_kernels.distributed.ops import kseq_rho, row_gap, row_stats, sample, verify_chain, verify_tree
from specdec_kernels.distributed.shards import Shards, Traffic

__all__ = ["Shards", "Traffic", "kseq_rho", "row_gap", "row_stats", "sample", "verify_chain", "verify_tree"]
