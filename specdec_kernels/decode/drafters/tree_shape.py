# SPDX-License-Identifier: Apache-2.0
"""Shape of a draft tree, fixed before its tokens are drafted."""

from collections.abc import Sequence

__all__ = ["TreeShape"]


class TreeShape:
    """A tree whose nodes are numbered level by level, siblings side by side, so that one pass drafts one level.

    shape: the number of children of each node, level by level: (4, 1, 1) is four chains of length 3. Or a parent list
    that starts with -1 and has parents before their children, as Medusa and EAGLE publish their trees.
    """

    def __init__(self, shape: Sequence[int]):
        shape = list(shape)
        if not shape or not all(isinstance(x, int) for x in shape):
            raise ValueError(f"TreeShape: shape must be widths per level or a parent list, got {shape}")
        parents = shape if shape[0] == -1 else self._parents(shape)
        wrong = [i for i, p in enumerate(parents) if not (0 <= p < i or i == 0)]
        if wrong or len(parents) < 2:
            raise ValueError(
                "TreeShape: shape must be widths >= 1, or a parent list with parents[0] = -1 and 0 <= parents[i] < i, "
                f"got {shape}"
            )
        below: list[list[int]] = [[] for _ in parents]
        for i, p in enumerate(parents[1:], 1):
            below[p].append(i)
        order = [0]
        for node in order:  # the list grows during the loop: breadth first
            order += below[node]
        number = {node: i for i, node in enumerate(order)}
        self.parents = [-1] + [number[parents[node]] for node in order[1:]]
        self.children = [[number[c] for c in below[node]] for node in order]
        self.levels = [range(1)]  # the nodes of each level
        while self.levels[-1].stop < len(order):
            last = self.levels[-1]
            self.levels.append(range(last.stop, last.stop + sum(len(self.children[i]) for i in last)))

    @property
    def depth(self) -> int:
        return len(self.levels) - 1

    @property
    def most(self) -> int:
        """Number of nodes below the root."""
        return len(self.parents) - 1

    def choose(self, requests: int, drafting: int) -> "TreeShape":
        """Return itself: the shape is fixed."""
        return self

    def observe(self, parents, outcome) -> None:
        return None

    @staticmethod
    def _parents(widths):
        if min(widths) < 1:
            raise ValueError(
                f"TreeShape: shape must be widths >= 1, or a parent list that starts with -1, got {widths}"
            )
        parents, level = [-1], range(1)
        for width in widths:
            parents += [i for i in level for _ in range(width)]
            level = range(level.stop, len(parents))
        return parents
