# SPDX-License-Identifier: Apache-2.0
"""What passes between a drafter and the loop: the drafter's duties (Drafter), and what it hands over for one step
(Proposal): a chain of tokens (Draft), a tree (TreeDraft), or what a token-level cascade keeps (token_cascade.py)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch

import specdec_kernels as sk

from .models.slot_cache import Branches, SlotCache
from .outcome import Outcome
from .sequence import Batch, Sequence

__all__ = ["Draft", "Drafter", "Proposal", "TreeDraft"]


class Proposal(Protocol):
    """One step's drafts for the n requests of a batch, and how they are scored, verified and committed.

    The defaults are those of a chain. A proposal of another kind inherits and says what differs.
    """

    tokens: torch.Tensor  # [n, G] int64, to be scored behind each request's last token; -1 where there is none

    @property
    def branches(self) -> Branches | None:
        """Scored: as nodes of trees, or (None) as chains, in which each token sees all before it."""
        return None

    @property
    def needs_target(self) -> list[bool]:
        """Scored: which requests need the target's pass; without any there is none, and verify is given no logits."""
        return [True] * len(self.tokens)

    def verify(
        self, logits: torch.Tensor | None, batch: Batch, method: str, row: torch.Tensor | None
    ) -> sk.VerifyChainOutput:
        """Verified: logits [n, G + 1, V] of the target's pass, or [M, V] and the row [n, G + 1] of each that is there
        -> what verify_chain or verify_tree says. method: "token" or "block"."""

    def commit_kv(self, cache: SlotCache, start: list[int], verified, slot: int) -> None:
        """Committed: the accepted tokens' keys go where they belong in the target's cache; start and slot: of the
        step's pass, whose row i lies in slot `slot + i`. Those of a chain lie there already."""
        return None

    def tested(self, verified) -> torch.Tensor:
        """[n] levels that verification looked at: the accepted ones and the first rejected one."""
        return torch.minimum(verified.num_accepted + 1, (self.tokens >= 0).sum(1))


@dataclass(frozen=True, eq=False)
class Draft(Proposal):
    """A chain for each request."""

    tokens: torch.Tensor  # [n, G] int64; -1 ends a row's draft
    # verify_chain's draft: [n, G, Vq], or G + 1 rows, the last after a request's last draft; None: all one-hot
    rows: sk.Rows | None = None

    @classmethod
    def nothing(cls, batch) -> "Draft":
        """Not a token for any request."""
        return cls(torch.empty(len(batch), 0, dtype=torch.int64, device=batch.device))

    def verify(self, logits, batch, method, row):
        target = sk.Rows(logits, **batch.sampling, row=row)
        return sk.verify_chain(target, self.tokens, self.rows, method=method, **batch.rules, **batch.randomness)


@dataclass(frozen=True, eq=False)
class TreeDraft(Proposal):
    """A tree for each request, by the numbering of build_tree: node 0 is the last committed token. `tokens` has no
    column for it."""

    parents: torch.Tensor  # [n, N] int32, -1 at the root and at padding
    tokens: torch.Tensor  # [n, N - 1] int64, of nodes 1, 2, ...; -1 at padding
    method: str = ""  # of verify_tree
    depth: int = 0  # of the deepest tree the drafter makes
    draft_nodes: torch.Tensor | None = None  # [n, K, L], as build_tree has them, for methods that test drafts
    rows: sk.Rows | None = None  # verify_tree's draft: [n, M, Vq] and each node's `row`, for methods that read them

    @property
    def branches(self):
        return Branches(self.parents, [0] * len(self.parents))

    def verify(self, logits, batch, method, row):
        if row is not None:  # nobody reads the rows of padding
            logits = logits[row.clamp(min=0)]
        root = self.tokens.new_full((len(self.tokens), 1), -1)
        tree: tuple = self.parents, torch.cat((root, self.tokens), 1), None, self.draft_nodes
        target, drawn = sk.Rows(logits, **batch.sampling), batch.rules | batch.randomness
        return sk.verify_tree(tree, target, self.rows, method=self.method, max_depth=self.depth, **drawn)

    def commit_kv(self, cache, start, verified, slot):
        """The accepted path moves together."""
        cache.compact(start, verified.path, slot)

    def tested(self, verified):
        """Levels with drafts that the walk has come to: the accepted ones, and the one where none was accepted."""
        accepted = verified.num_accepted.long()
        last = verified.path.gather(1, accepted[:, None])
        return accepted + (self.parents == last).any(1)


class Drafter(Protocol):
    """What the loop asks of a drafter. Slots are numbered as in the target's cache.

    A drafter serves one run of the loop at a time. The batch of a step lies in the slots `batch.slots`: all that are
    taken, or, after a step that failed, some of them.

    The defaults are those of a drafter that keeps its state in `parts`, models' runners or other drafters, which follow
    the requests through the slots, and that learns nothing from a step.
    """

    parts: Iterable = ()
    num_lookahead: int  # how many positions past the end of a sequence a step may write
    rules: tuple[str, ...]  # under which its drafts can be verified
    verifies: tuple[str, ...]  # "token", "block": the methods of verify_chain that can do it; a tree names its own
    chains: bool = True  # whether its proposals are chains
    over_ranks: bool = False  # whether other processes take the same steps and verify them together

    @property
    def name(self) -> str:
        """In errors."""
        return type(self).__name__

    def check(self, target, sequences: Iterable[Sequence]) -> None:
        """Raises ValueError, before anything of these is decoded, where this drafter cannot serve a request or the
        target."""
        return None

    def begin(self, slots: int, capacity: int) -> None:
        """A new run of the loop."""
        for part in self.parts:
            part.begin(slots, capacity)

    def follow(self, target, cache: SlotCache) -> None:
        """Behind begin: the target and its cache, for drafts that read its states."""
        for part in self.parts:
            part.follow(target, cache)

    def admit(self, slot: int, sequence: Sequence) -> None:
        """A request takes a slot."""
        for part in self.parts:
            part.admit(slot, sequence)

    def move(self, source: int, target: int) -> None:
        """The request in slot `source` goes on in slot `target`."""
        for part in self.parts:
            part.move(source, target)

    def release(self, slot: int) -> None:
        """Slot `slot` is free: nothing of its request is kept."""
        for part in self.parts:
            part.release(slot)

    def forget(self) -> None:
        """A step has failed: nothing that was drafted in it is used."""
        for part in self.parts:
            part.forget()

    def propose(self, batch: Batch) -> Proposal | None:
        """Draft for every sequence; None if there is nothing for any of them."""

    def observe(self, outcome: Outcome) -> None:
        """What became of the step, one without a proposal too."""
        return None
