# SPDX-License-Identifier: Apache-2.0
"""What speculative decoding can gain, by the papers: with one drafted path (chains), with several drafts (trees), and
where a rule lets the draft's token stand (cascades)."""

from .acceptance import acceptance_rate, acceptance_rate_from_logits
from .cascades import deferral_rate
from .chains import (
    alpha_for_tokens,
    best_gamma,
    expected_chain_tokens,
    expected_tokens,
    hierarchical_factor,
    improves,
    operations_factor,
    walltime_factor,
)
from .trees import expected_tree_tokens, kseq_guarantee, multi_draft_acceptance, optimal_acceptance

__all__ = [
    "acceptance_rate",
    "acceptance_rate_from_logits",
    "alpha_for_tokens",
    "best_gamma",
    "deferral_rate",
    "expected_chain_tokens",
    "expected_tokens",
    "expected_tree_tokens",
    "hierarchical_factor",
    "improves",
    "kseq_guarantee",
    "multi_draft_acceptance",
    "operations_factor",
    "optimal_acceptance",
    "walltime_factor",
]
