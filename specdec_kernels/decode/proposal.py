# SPDX-License-Identifier: Apache-2.0
"""What a drafter hands to the loop, and what the loop asks of a drafter."""

from typing import NamedTuple, Protocol

import torch

import specdec_kernels as sk

from ..rules import TABLE
from .models.slot_cache import Branches
from .sequence import Batch, Sequence

__all__ = ["ONE_HOT_RULES", "Draft", "Drafter", "TreeDraft", "tested_drafts"]

# Rules that make sense of a draft which no model has weighed: all but those that put a law of both models' rows in
# place of p.
ONE_HOT_RULES = tuple(name for name, rule in TABLE.items() if name == "exact" or not rule.defines_distribution)


class Draft(NamedTuple):
    """A chain for each row."""

    tokens: torch.Tensor  # [n, G] int64; -1 ends a row's draft
    logits: torch.Tensor | None = (
        None  # [n, G, Vq], or G+1 rows, the last behind a request's last draft; None: every draft is one-hot
    )
    stats: torch.Tensor | None = (
        None  # [n, G or G+1, 4] of the rows of logits; a greedy row (scale +inf) is one-hot, its logits go unread
    )

    branches = None  # in the target's pass each token sees all before it

    @property
    def called(self) -> list[bool]:
        """For which rows the target is needed."""
        return [True] * len(self.tokens)

    def verify(self, logits, batch, method):
        drawn = dict(draft_logits=self.logits, draft_stats=self.stats)
        return sk.verify_chain(logits, self.tokens, method=method, **drawn, **batch.rules, **batch.randomness)

    def settle(self, cache, start, verdict):
        """The accepted tokens lie in the target's cache where they belong."""

    def tested(self, verdict) -> list[int]:
        return [min(a + 1, g) for a, g in zip(verdict.num_accepted.tolist(), (self.tokens >= 0).sum(1).tolist())]


class TreeDraft(NamedTuple):
    """A tree for each row, by the numbering of build_tree: node 0 is the last committed token. `tokens` has no column
    for it."""

    parents: torch.Tensor  # [n, N] int32, -1 at the root and at padding
    tokens: torch.Tensor  # [n, N - 1] int64, of nodes 1, 2, ...; -1 at padding
    method: str = ""  # of verify_tree
    depth: int = 0  # of the deepest tree the drafter makes
    draft_nodes: torch.Tensor | None = None  # [n, K, L], as build_tree has them, for methods that test drafts
    logits: torch.Tensor | None = None  # [n, M, Vq] rows that nodes were drawn from, for methods that read them
    stats: torch.Tensor | None = None  # [n, M, 4]
    row: torch.Tensor | None = None  # [n, N]: the row each node was drawn from, -1: one-hot

    called = Draft.called

    @property
    def branches(self):
        return Branches(self.parents, [0] * len(self.parents))

    def verify(self, logits, batch, method):
        root = self.tokens.new_full((len(self.tokens), 1), -1)
        tree = self.parents, torch.cat((root, self.tokens), 1), None, self.draft_nodes
        drawn = (
            {} if self.logits is None else dict(draft_logits=self.logits, draft_stats=self.stats, draft_row=self.row)
        )
        return sk.verify_tree(
            tree, logits, method=self.method, max_depth=self.depth, **drawn, **batch.rules, **batch.randomness
        )

    def settle(self, cache, start, verdict):
        """The accepted path moves together in the target's cache."""
        cache.compact(start, [[node for node in path if node >= 0] for path in verdict.path.tolist()])

    def tested(self, verdict) -> list[int]:
        """Levels with drafts that the walk has come to: the accepted ones, and the one where none was accepted."""
        accepted = verdict.num_accepted.long()
        last = verdict.path.gather(1, accepted[:, None])
        return (accepted + (self.parents == last).any(1)).tolist()


class Drafter(Protocol):
    """What the loop asks of a drafter. Slots are numbered as in the target's cache."""

    margin: int  # how many positions past the end of a sequence a step may write
    rules: tuple[str, ...]  # under which its drafts can be verified
    verifies: tuple[str, ...]  # "token", "block": the methods of verify_chain that can do it; a tree names its own

    def begin(self, slots: int, capacity: int) -> None:
        """A new run of the loop."""

    def admit(self, slot: int, sequence: Sequence) -> None:
        """A request takes a slot."""

    def move(self, source: int, target: int) -> None:
        """The request in slot `source` goes on in slot `target`."""

    def propose(self, batch: Batch) -> Draft | TreeDraft | None:
        """Draft for every sequence; None if there is nothing for any of them."""

    def observe(self, drafted: list[int], accepted: list[int], draft_seconds: float, target_seconds: float) -> None:
        """What became of the last proposal, row by row, and the seconds the step's two halves took."""


def tested_drafts(drafted: list[int], accepted: list[int]) -> int:
    """How many drafts the acceptance test looked at: the accepted ones and the first rejected one of each row."""
    return sum(min(a + 1, g) for g, a in zip(drafted, accepted))
