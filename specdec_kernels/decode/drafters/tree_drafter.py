# SPDX-License-Identifier: Apache-2.0
"""Draft trees from a smaller model."""

from collections.abc import Sequence
from dataclasses import replace

from ...registry import ONE_HOT_RULES
from ...registry import TREE_METHODS as _METHODS
from ..adaptive.adaptive_shape import AdaptiveShape
from ..adaptive.tree_growth import independent, shaped
from ..interfaces import check_model
from ..proposal import Drafter
from .draft_runner import DraftRunner
from .lookup_branch import with_lookup
from .prompt_lookup import PromptLookupDrafter
from .tree_shape import TreeShape

__all__ = ["TREE_METHODS", "TreeDrafter"]

TREE_METHODS = tuple(_METHODS)


class TreeDrafter(Drafter):
    """Drafter of one tree per request, drawn as the verification method requires, with one pass of the model per level.

    - ``kseq``, ``recursive``: `drafts` independent chains of length `depth`, with common prefixes merged (build_tree).
    - ``recursive_without_replacement``, ``traversal``: a tree of fixed shape; a node's children are drawn without
      replacement.
    - ``target_only``, ``greedy``: a tree of fixed shape; a node's children are the model's most likely tokens there.
      At temperature 0, where all draws would be the same token, only these trees and those of ``race`` branch.
      ``greedy`` takes only such requests.
    - ``race``: a tree of fixed shape; a node's children are the first of the model's race there, with the noise that
      draws the target's tokens. At temperature 0 they are its most likely tokens. The session's `verify` is "race".

    Requests may use any rule that the method supports (specdec_kernels.registry.TREE_METHODS).

    Args:
        model: a Model (models/adapters.py).
        method: a method of verify_tree.
        drafts, depth: the number of chains, and their length.
        shape: as TreeShape takes it, for trees of fixed shape. None: (drafts, 1, 1, ...), distinct first tokens with a
            chain after each. "auto": in each step the nodes that are worth their cost by measurement, possibly none,
            with up to `drafts` children of a node and `depth` levels (adaptive/adaptive_shape.py).
        lookup: a drafter whose draft joins each tree of fixed shape as one more branch (lookup_branch.py). Not for
            ``kseq`` and ``recursive``, whose merged drafts have one distribution per node. It excludes rules that need
            the draft's distribution, which looked-up text does not have.

    Raises:
        ValueError: an unknown method, a number below 1, a shape or a lookup that the method cannot verify.

    Source:
        the papers of verify_tree's methods.
    """

    chains = False
    draws_viewed = True

    def __init__(
        self,
        model,
        method: str = "recursive_without_replacement",
        drafts: int = 4,
        depth: int = 4,
        shape: Sequence[int] | str | None = None,
        lookup: PromptLookupDrafter | None = None,
    ):
        if method not in _METHODS:
            raise ValueError(f"TreeDrafter: method must be one of {', '.join(map(repr, _METHODS))}, got {method!r}")
        for name, value in (("drafts", drafts), ("depth", depth)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"TreeDrafter: {name} must be an integer >= 1, got {value!r}")
        self.method, self.drafts, self.depth, self.lookup = method, drafts, depth, lookup
        self.verifies = ("race" if method == "race" else "token",)
        self.shape: TreeShape | AdaptiveShape | None = None
        if _METHODS[method].children != "independent":
            widths: list = [drafts, *[1] * (depth - 1)] if shape is None else list(shape)
            self.shape = AdaptiveShape(drafts, depth) if shape == "auto" else TreeShape(widths)
            self.depth = self.shape.depth
        elif shape is not None:
            got = shape if isinstance(shape, str) else list(shape)
            raise ValueError(
                f"TreeDrafter: method {method!r} draws independent chains, which have no fixed shape, got {got}"
            )
        if lookup is not None and self.shape is None:
            raise ValueError(
                f"TreeDrafter: lookup needs distinct children that may differ in their law, which {method!r} "
                "cannot verify"
            )
        self.rules = tuple(rule for rule in _METHODS[method].rules if lookup is None or rule in ONE_HOT_RULES)
        self.model = DraftRunner(check_model("TreeDrafter", "model", model), reach=self.depth + 1)
        self.parts = (self.model,) if lookup is None else (self.model, lookup)
        nodes = drafts * depth if self.shape is None else self.shape.most
        longest = 0 if lookup is None else lookup.gamma.max
        self.max_depth = max(self.depth, longest)
        self.num_lookahead = nodes + longest + max(drafts, self.model.reach)

    def check(self, target, sequences):
        for s in sequences:
            if self.method == "greedy" and s.request.temperature > 0:
                raise ValueError(
                    "TreeDrafter: method 'greedy' follows the argmax and needs temperature 0, "
                    f"request {s.index} has {s.request.temperature}"
                )

    def propose(self, batch):
        limits = [min(self.depth, s.remaining - 1) for s in batch]
        shape = None if self.shape is None else self.shape.choose(len(batch), sum(limit > 0 for limit in limits))
        self.parents = None
        if max(limits) < 1 or (shape is None and self.shape is not None):
            return None
        root = self.model.catch_up(batch)[:, None]
        if shape is None:
            draft = independent(self.model, batch, root, limits, self.drafts, self.depth)
        else:
            draft = shaped(self.model, batch, root, limits, shape, [self._likeliest(s) for s in batch])
        self.parents = batch.readback.ask(draft.parents)  # of the model's nodes, without the lookup's
        draft = replace(draft, method=self.method, depth=self.max_depth)
        return draft if self.lookup is None else with_lookup(draft, self.lookup.find(batch), batch.readback)

    def _likeliest(self, sequence) -> bool:
        """Return whether a request's tree is made of the model's likeliest tokens; if not, they are drawn."""
        if self.method == "race":
            return sequence.request.temperature == 0
        return _METHODS[self.method].children == "any"

    def observe(self, outcome):
        if self.shape is not None:
            self.shape.observe(None if self.parents is None else self.parents.rows, outcome)
