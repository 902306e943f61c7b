# SPDX-License-Identifier: Apache-2.0
"""SGLang's verification calls on our ops: the same arguments, so that an import is what changes.

    from specdec_kernels.integrations.sglang import tree_speculative_sampling_target_only, verify_tree_greedy

Written from the signatures and contracts of SGLang 0.5.23 and sglang-kernel 0.4.10; neither is imported. As there,
results are written into ``predicts`` [B*N], ``accept_index`` [B, S] and ``accept_token_num`` [B], of which only the
entries of the accepted path change, and nothing is returned. What all of them have of ours: any device, nothing that
waits for it, half-precision rows, and tokens that depend on neither batch mates nor padding. ``deterministic`` changes
nothing: every answer is. A request's status is not handed on: ``verify_tree`` and ``verify_chain`` themselves return
it.
"""

from specdec_kernels.integrations.sglang.build_tree import build_tree_kernel_efficient
from specdec_kernels.integrations.sglang.chain import (
    BlockwiseRejection,
    RejectionNoise,
    chain_speculative_sampling_triton,
    make_rejection_noise,
)
from specdec_kernels.integrations.sglang.tree import tree_speculative_sampling_target_only, verify_tree_greedy

__all__ = [
    "BlockwiseRejection",
    "RejectionNoise",
    "build_tree_kernel_efficient",
    "chain_speculative_sampling_triton",
    "make_rejection_noise",
    "tree_speculative_sampling_target_only",
    "verify_tree_greedy",
]
