# SPDX-License-Identifier: Apache-2.0
"""Formulas of the papers for the gain of speculative decoding: one chain, several drafts (trees), and cascades."""

from .acceptance import acceptance_rate, acceptance_rate_from_logits, race_acceptance
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
    "race_acceptance",
    "walltime_factor",
]
