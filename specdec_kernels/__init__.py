# SPDX-License-Identifier: Apache-2.0
"""The verification half of speculative decoding: exact, fused PyTorch ops.

p is the target's law, q the draft's, everywhere. Each function here is also ``torch.ops.specdec.<name>``.
"""

from specdec_kernels import backends

backends.load()

from specdec_kernels import reference, theory  # noqa: E402
from specdec_kernels.ops.accept import accept  # noqa: E402
from specdec_kernels.ops.build_tree import Tree, build_tree  # noqa: E402
from specdec_kernels.ops.kseq_rho import KSeqRhoOutput, kseq_rho  # noqa: E402
from specdec_kernels.ops.residual import residual  # noqa: E402
from specdec_kernels.ops.row_gap import row_gap  # noqa: E402
from specdec_kernels.ops.row_stats import row_stats  # noqa: E402
from specdec_kernels.ops.sample import SampleOutput, sample  # noqa: E402
from specdec_kernels.ops.tree_mask import (  # noqa: E402
    STATUS_INVALID_PARENT,
    STATUS_INVALID_PREFIX,
    TreeMask,
    tree_mask,
)
from specdec_kernels.ops.tree_mask_mod import tree_mask_mod  # noqa: E402
from specdec_kernels.ops.uniforms import (  # noqa: E402
    DOMAIN_ACCEPT,
    DOMAIN_DRAFT,
    DOMAIN_FINAL,
    DOMAIN_NOISE,
    uniforms,
)
from specdec_kernels.ops.verify_chain import (  # noqa: E402
    STATUS_EMPTY_RESIDUAL,
    STATUS_INVALID_BONUS,
    STATUS_INVALID_DRAFT,
    STATUS_INVALID_ROW,
    VerifyChainOutput,
    verify_chain,
)
from specdec_kernels.ops.verify_tree import VerifyTreeOutput, verify_tree  # noqa: E402
from specdec_kernels.rules import RULES  # noqa: E402

__version__ = "0.1.0"

__all__ = [
    "DOMAIN_ACCEPT",
    "DOMAIN_DRAFT",
    "DOMAIN_FINAL",
    "DOMAIN_NOISE",
    "RULES",
    "STATUS_EMPTY_RESIDUAL",
    "STATUS_INVALID_BONUS",
    "STATUS_INVALID_DRAFT",
    "STATUS_INVALID_PARENT",
    "STATUS_INVALID_PREFIX",
    "STATUS_INVALID_ROW",
    "KSeqRhoOutput",
    "SampleOutput",
    "Tree",
    "TreeMask",
    "VerifyChainOutput",
    "VerifyTreeOutput",
    "accept",
    "backends",
    "build_tree",
    "kseq_rho",
    "reference",
    "residual",
    "row_gap",
    "row_stats",
    "sample",
    "theory",
    "tree_mask",
    "tree_mask_mod",
    "uniforms",
    "verify_chain",
    "verify_tree",
]
