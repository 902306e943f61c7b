# SPDX-License-Identifier: Apache-2.0
"""A tree shape chosen from measurements: the nodes that are worth their cost."""

from ..drafters.tree_shape import TreeShape
from .acceptance import Kind
from .draft_length import AdaptiveGamma

__all__ = ["AdaptiveShape"]

_MOST = 32  # nodes
_FIRST, _FALL = 0.6, 0.3  # first guess: acceptance of a first child, and the ratio of each child to the one before it


class _ByRank(AdaptiveGamma):
    """An AdaptiveGamma that values the first level of a tree by the sum over its nodes."""

    def __init__(self, deepest: int, ranks: list[Kind]):
        super().__init__(deepest)
        self.ranks = ranks

    def promise(self, price):
        return sum(max(0.0, self.acceptance.chance(rank) - price) for rank in self.ranks)


class AdaptiveShape:
    """A tree shape of the nodes whose survival probability exceeds their price.

    The price is the cost of scoring a node, in tokens (goodput.py). A node survives if its whole path is accepted. Its
    survival is the product, along the path, of the acceptance measured so far for children of each rank (index among
    siblings). The shape is fixed before anything is drawn, so it cannot change the output distribution.

    Args:
        widest, deepest: the most children of a node, and the most levels.

    Source:
        Chen et al. 2024 (Sequoia): a child's chance of acceptance depends on its index among its siblings.
    """

    def __init__(self, widest: int, deepest: int):
        self.kinds = [Kind(rank, _FIRST * _FALL**rank) for rank in range(widest)]
        self.depth, self.most, self.gamma = deepest, _MOST, _ByRank(deepest, self.kinds)

    def choose(self, requests: int, drafting: int) -> TreeShape | None:
        """Return the shape for a step of `requests` requests, `drafting` of which take drafts. None: no drafts."""
        gamma, parents, level = self.gamma, [-1], [(0, 1.0)]
        more = gamma.begin(requests, drafting)
        chances = [gamma.acceptance.chance(kind) for kind in self.kinds]
        for depth in range(1, self.depth + 1):
            if not more:
                break
            below = []
            for node, survival in level:
                for chance in chances:
                    only = gamma.trial and len(parents) == 1
                    if len(parents) > self.most or (survival * chance <= gamma.price and not only):
                        break
                    below.append((len(parents), survival * chance))
                    parents.append(node)
            worth = drafting * sum(max(0.0, s * chances[0] - gamma.price) for _, s in below)
            level, more = below, worth > gamma.level_cost(depth)
        shape = TreeShape(parents) if len(parents) > 1 else None
        self.levels = 0 if shape is None else shape.depth
        return shape

    def observe(self, parents, outcome) -> None:
        """Learn from a step. parents: the parent of every node of each tree; None if the step had no trees."""
        self.gamma.goodput.observe(outcome)
        if parents is None:
            self.gamma.learn(outcome)
            return
        for above, path in zip(parents, outcome.path):
            for node, taken in zip(path, [*path[1:], -1]):
                if node < 0:
                    break
                for rank, child in enumerate(child for child, parent in enumerate(above) if parent == node):
                    self.gamma.acceptance.observe(self.kinds[rank], child == taken)
        self.gamma.learn(outcome, passes=self.levels)
