# SPDX-License-Identifier: Apache-2.0
"""SGLang's verification calls by our ops. The arguments are the same, so only the import changes.

    from specdec_kernels.integrations.sglang import tree_speculative_sampling_target_only, verify_tree_greedy

Written from the signatures and contracts of SGLang 0.5.23 and sglang-kernel 0.4.10; neither is imported. As there, the
functions named ``tree_...``, ``chain_...`` and ``verify_...`` return nothing. They write to ``predicts`` [B*N],
``accept_index`` [B, S] and ``accept_token_num`` [B], and of the first two they change only entries of the accepted
path. All functions run on the CPU too, do not wait for a GPU, and take rows in half precision. A request's tokens do
not depend on other requests or on padding. ``deterministic`` has no effect: results are always deterministic. A
request's status is not returned here; ``verify_tree`` and ``verify_chain`` return it.
"""

from specdec_kernels.integrations.sglang.build_tree import build_tree_kernel_efficient
from specdec_kernels.integrations.sglang.chain import (
    BlockwiseRejection,
    RejectionNoise,
    chain_block_speculative_sampling_triton,
    chain_speculative_sampling_triton,
    make_rejection_noise,
)
from specdec_kernels.integrations.sglang.tree import tree_speculative_sampling_target_only, verify_tree_greedy

tree_speculative_sampling_target_only_triton = tree_speculative_sampling_target_only  # SGLang's name on ROCm

__all__ = [
    "BlockwiseRejection",
    "RejectionNoise",
    "build_tree_kernel_efficient",
    "chain_block_speculative_sampling_triton",
    "chain_speculative_sampling_triton",
    "make_rejection_noise",
    "tree_speculative_sampling_target_only",
    "tree_speculative_sampling_target_only_triton",
    "verify_tree_greedy",
]
