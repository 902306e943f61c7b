# SPDX-License-Identifier: Apache-2.0
"""A drafter for beam search, which runs the beam search of a smaller model."""

from collections.abc import Callable

import torch

from ..beams import best, extensions
from ..interfaces import check_model
from ..models.token_tree import Path, TokenTree

__all__ = ["BeamDrafter"]


class BeamDrafter:
    """Beam-search drafter: continues the live beams by the model's own beam search, and proposes every node it visits.

    A step needs no target call only if all W live beams are among the proposed nodes. So the draft should keep more
    beams than the target: twice as many give nearly all of the possible gain.

    Args:
        model: a Model (models/adapters.py).
        width: beams of the draft.
        depth: steps it looks ahead, one pass of the model each.

    Raises:
        TypeError: model is no Model.
        ValueError: a number below 1.
    """

    def __init__(self, model, width: int = 8, depth: int = 4):
        for name, value in (("width", width), ("depth", depth)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"BeamDrafter: {name} must be an integer >= 1, got {value!r}")
        check_model("BeamDrafter", "model", model)
        self.model, self.width, self.depth = model, width, depth
        self.num_lookahead = width * depth

    def begin(self, prompt: list[int], room: int) -> None:
        self.tree = TokenTree(self.model, prompt, room + self.num_lookahead)

    def propose(self, live: dict[Path, float], depth: int, allowed: Callable[[int], bool]) -> list[Path]:
        self.tree.keep([*live])
        frontier, proposed = live, []
        rows = self.tree.feed(self.tree.missing(live))
        for level in range(min(self.depth, depth)):
            if level > 0:
                rows = self.tree.feed(frontier)
            frontier = self._grow(frontier, rows, allowed)
            proposed += frontier
            if not frontier:
                break
        return proposed

    def _grow(self, beams: dict[Path, float], rows: dict[Path, torch.Tensor], allowed) -> dict[Path, float]:
        paths = [*beams]
        found = extensions([rows[path] for path in paths], [*enumerate(beams.values())], self.width)
        kept = best((x for x in found if allowed(x.token)), self.width)
        return {(*paths[i], token): score for score, i, token in kept}
