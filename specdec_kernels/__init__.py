# SPDX-License-Identifier: Apache-2.0
"""Exact, fused PyTorch ops for the verification step of speculative decoding.

p is always the target's distribution and q the draft's. Each op is also registered as ``torch.ops.specdec.<name>``.
"""

# ruff: noqa: I001  (one import per module keeps an op and its result types together)
from specdec_kernels import backends as backends, reference as reference, theory as theory
from specdec_kernels.ops.accept import accept as accept
from specdec_kernels.ops.budget import budget as budget
from specdec_kernels.ops.build_tree import Tree as Tree, build_tree as build_tree
from specdec_kernels.ops.count_tokens_ import count_tokens_ as count_tokens_
from specdec_kernels.ops.grow_tree import grow_tree as grow_tree
from specdec_kernels.ops.kseq_rho import KSeqRhoOutput as KSeqRhoOutput, kseq_rho as kseq_rho
from specdec_kernels.ops.residual import residual as residual
from specdec_kernels.ops.row_gap import row_gap as row_gap
from specdec_kernels.ops.row_stats import row_stats as row_stats
from specdec_kernels.allowed import Allowed as Allowed
from specdec_kernels.bias import Bias as Bias
from specdec_kernels.penalties import Penalties as Penalties, history as history
from specdec_kernels.vocab_map import VocabMap as VocabMap, vocab_map as vocab_map
from specdec_kernels.rows import Rows as Rows
from specdec_kernels.ops.row_topw import RowTopwOutput as RowTopwOutput, row_topw as row_topw
from specdec_kernels.ops.sample import SampleOutput as SampleOutput, sample as sample
from specdec_kernels.ops.stack_rows import stack_rows as stack_rows
from specdec_kernels.ops.support import SupportOutput as SupportOutput, support as support
from specdec_kernels.ops.top_logprobs import TopLogprobsOutput as TopLogprobsOutput, top_logprobs as top_logprobs
from specdec_kernels.ops.tree_mask import TreeMask as TreeMask, tree_mask as tree_mask
from specdec_kernels.ops.tree_mask_mod import tree_mask_mod as tree_mask_mod
from specdec_kernels.ops.uniforms import uniforms as uniforms
from specdec_kernels.ops.verify_chain import VerifyChainOutput as VerifyChainOutput, verify_chain as verify_chain
from specdec_kernels.ops.verify_tree import VerifyTreeOutput as VerifyTreeOutput, verify_tree as verify_tree
from specdec_kernels.supports import Supports as Supports, supports as supports
from specdec_kernels.registry import (
    DOMAIN_ACCEPT as DOMAIN_ACCEPT,
    DOMAIN_DRAFT as DOMAIN_DRAFT,
    DOMAIN_FINAL as DOMAIN_FINAL,
    DOMAIN_NOISE as DOMAIN_NOISE,
    STATUS_EMPTY_RESIDUAL as STATUS_EMPTY_RESIDUAL,
    STATUS_HISTORY_FULL as STATUS_HISTORY_FULL,
    STATUS_INVALID_BONUS as STATUS_INVALID_BONUS,
    STATUS_INVALID_DRAFT as STATUS_INVALID_DRAFT,
    STATUS_INVALID_PARENT as STATUS_INVALID_PARENT,
    STATUS_INVALID_PREFIX as STATUS_INVALID_PREFIX,
    STATUS_INVALID_ROW as STATUS_INVALID_ROW,
)
from specdec_kernels.rules import RULES as RULES

__version__ = "0.1.0"
_MODULES = "backends", "reference", "theory"  # public; vars() also holds the other modules that this file imports from
__all__ = [n for n, x in list(vars().items()) if n in _MODULES or not (n[0] == "_" or isinstance(x, type(backends)))]
