# SPDX-License-Identifier: Apache-2.0
"""Drafters of every kind, as functions of the draft model."""

from specdec_kernels.decode import (
    TREE_METHODS,
    HierarchicalDrafter,
    LookupThenModel,
    ModelDrafter,
    PromptLookupDrafter,
    TokenCascade,
    TreeDrafter,
)

DRAFTERS = {
    "plain": lambda draft: None,
    "model": lambda draft: ModelDrafter(draft, 3),
    "lookup": lambda draft: PromptLookupDrafter(4),
    "both": lambda draft: LookupThenModel(PromptLookupDrafter(4), ModelDrafter(draft, 3)),
    "hierarchical": lambda draft: HierarchicalDrafter(draft, PromptLookupDrafter(3, min_ngram=1), 4),
    "kseq": lambda draft: TreeDrafter(draft, "kseq", 2, 3),
    "traversal": lambda draft: TreeDrafter(draft, "traversal", 2, 3, lookup=PromptLookupDrafter(4)),
}

KINDS = DRAFTERS | {
    "cascade": lambda draft: TokenCascade(draft, 40),
    "adaptive": lambda draft: LookupThenModel(PromptLookupDrafter("auto", 3, 1), ModelDrafter(draft, "auto")),
    "adaptive tree": lambda draft: TreeDrafter(draft, "traversal", 3, 3, "auto"),
}

EVERY = {
    **KINDS,
    **{m: lambda draft, m=m: TreeDrafter(draft, m, 2, 3) for m in TREE_METHODS if m != "greedy"},
    "greedy": lambda draft: TreeDrafter(draft, "greedy", 2, 3),
    "of models": lambda draft: HierarchicalDrafter(draft, ModelDrafter(draft, 2), 4),
}
UNDER_VIEWS = [kind for kind in EVERY if kind != "cascade"]  # kinds that take requests with penalties, biases or masks
