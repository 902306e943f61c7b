# SPDX-License-Identifier: Apache-2.0
"""The interface between drafters and the loop: Drafter, and the Proposal that it returns for one step.

A proposal is a chain of tokens (Draft), a tree (TreeDraft), or the kept tokens of a token-level cascade
(token_cascade.py).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch

import specdec_kernels as sk

from .models.slot_cache import Branches, SlotCache
from .outcome import Outcome
from .sequence import Batch, Sequence

__all__ = ["Draft", "Drafter", "Proposal", "TreeDraft"]


class Proposal(Protocol):
    """One step's drafts for the n requests of a batch, and how they are scored, verified and committed.

    The defaults are those of a chain. Other kinds override what differs.
    """

    tokens: torch.Tensor  # [n, G] int64, to be scored after each request's last token; -1 where there is none
    # Whether `verify` applies batch.views (penalties, biases, masks). If not, requests with views end with an error.
    takes_views: ClassVar[bool] = False

    @property
    def branches(self) -> Branches | None:
        """The trees that the tokens are nodes of. None: chains, in which each token attends to all before it."""
        return None

    @property
    def needs_target(self) -> list[bool]:
        """Whether each request needs the target's pass. If none does, there is no pass and verify gets no logits."""
        return [True] * len(self.tokens)

    def verify(
        self, logits: torch.Tensor | None, batch: Batch, method: str, row: torch.Tensor | None
    ) -> sk.VerifyChainOutput:
        """Verify the drafts -> the output of verify_chain or verify_tree. method: "token", "block" or "race".

        logits: [n, G + 1, V] of the target's pass, with `row` None. Or [M, V], the rows of tokens that are not
        padding, with `row` [n, G + 1] the index of each token's row; at padding it means nothing.
        """

    def commit_kv(self, cache: SlotCache, start: list[int], verified, slot: int) -> None:
        """Move the accepted tokens' keys to their final positions in the target's cache; a chain's are there already.

        start: the position of each request's last token before the step. Request i is in slot `slot + i`.
        """
        return None

    def emitting(self, verified) -> torch.Tensor:
        """Return the positions [n, E] of the target's rows at the emitted tokens. Padding may hold anything."""
        n, E = verified.tokens.shape
        return torch.arange(E, device=verified.tokens.device).expand(n, E)

    def tested(self, verified) -> torch.Tensor:
        """Return the number of tested levels [n]: the accepted ones and the first rejected one."""
        return torch.minimum(verified.num_accepted + 1, (self.tokens >= 0).sum(1))


@dataclass(frozen=True, eq=False)
class Draft(Proposal):
    """A chain for each request."""

    tokens: torch.Tensor  # [n, G] int64; -1 ends a row's draft
    # verify_chain's draft rows [n, G, Vq], or G + 1 rows with one after a request's last draft. None: the drafts are
    # one-hot, or the race verifies them, which reads no draft rows.
    rows: sk.Rows | None = None
    viewed: bool = False  # whether the drafts were drawn under batch.views
    takes_views = True

    @classmethod
    def nothing(cls, batch) -> "Draft":
        """Return a draft without tokens."""
        return cls(torch.empty(len(batch), 0, dtype=torch.int64, device=batch.device))

    def sides(self, logits, batch, row) -> tuple[sk.Rows, sk.Rows | None]:
        """Return the rows of the target and of the draft, each with the views that apply to it."""
        views = batch.views.chain(self.tokens)
        return sk.Rows(logits, **batch.sampling, row=row, **views), _seen(self, views)

    def verify(self, logits, batch, method, row):
        target, draft = self.sides(logits, batch, row)
        return sk.verify_chain(target, self.tokens, draft, method=method, **batch.rules, **batch.randomness)


@dataclass(frozen=True, eq=False)
class TreeDraft(Proposal):
    """A tree for each request, numbered as by build_tree.

    Node 0 is the last committed token; it has no column in `tokens`.
    """

    parents: torch.Tensor  # [n, N] int32, -1 at the root and at padding
    tokens: torch.Tensor  # [n, N - 1] int64, of nodes 1, 2, ...; -1 at padding
    method: str = ""  # of verify_tree
    depth: int = 0  # depth of the deepest tree that the drafter makes
    draft_nodes: torch.Tensor | None = None  # [n, K, L], the drafts' nodes (build_tree), for methods that test drafts
    rows: sk.Rows | None = None  # verify_tree's draft rows [n, M, Vq] and each node's `row`, for methods that read them
    viewed: bool = False  # whether the drafts were drawn under batch.views
    takes_views = True

    @property
    def branches(self):
        return Branches(self.parents, [0] * len(self.parents))

    def verify(self, logits, batch, method, row):
        if row is not None:  # rows of padding are never read
            logits = logits[row.clamp(min=0)]
        root = self.tokens.new_full((len(self.tokens), 1), -1)
        tree: tuple = self.parents, torch.cat((root, self.tokens), 1), None, self.draft_nodes
        views, drawn = batch.views.tree(*tree[:2]), batch.rules | batch.randomness
        target, draft = sk.Rows(logits, **batch.sampling, **views), _seen(self, views)
        return sk.verify_tree(tree, target, draft, method=self.method, max_depth=self.depth, **drawn)

    def commit_kv(self, cache, start, verified, slot):
        """Move the keys of the accepted path to consecutive positions."""
        cache.compact(start, verified.path, slot)

    def emitting(self, verified):
        """Return the nodes of the accepted path."""
        return verified.path.long()

    def tested(self, verified):
        """Return the number of tested levels [n]: the accepted ones, and the next one if it has nodes."""
        accepted = verified.num_accepted.long()
        last = verified.path.gather(1, accepted[:, None])
        return accepted + (self.parents == last).any(1)


def _seen(draft: Draft | TreeDraft, views: dict) -> sk.Rows | None:
    """Return the draft's rows, with the views if its tokens were drawn under them."""
    return draft.rows._replace(**views) if draft.rows is not None and draft.viewed else draft.rows


class Drafter(Protocol):
    """The interface of a drafter. Slots are numbered as in the target's cache.

    A drafter serves one run of the loop at a time. A step's batch is in the slots `batch.slots`: all slots in use, or
    some of them when a failed step is retried.

    By default a drafter keeps its state in `parts` (model runners or other drafters, which follow the requests through
    the slots) and learns nothing from a step.
    """

    parts: Iterable = ()
    num_lookahead: int  # the most positions after the end of a sequence that a step may write
    rules: tuple[str, ...]  # rules under which its drafts can be verified
    verifies: tuple[str, ...]  # methods of verify_chain for its chains; ("race",) or ("token",) for trees
    chains: bool = True  # whether its proposals are chains
    draws_viewed: bool = False  # whether all its drafts are drawn under batch.views
    over_ranks: bool = False  # whether other processes take the same steps and verify them together

    @property
    def name(self) -> str:
        """The name in error texts."""
        return type(self).__name__

    def check(self, target, sequences: Iterable[Sequence]) -> None:
        """Raise ValueError if this drafter cannot serve the target or one of the sequences. Called at submission."""
        return None

    def begin(self, slots: int, capacity: int) -> None:
        """Start a new run of the loop."""
        for part in self.parts:
            part.begin(slots, capacity)

    def follow(self, target, cache: SlotCache) -> None:
        """Take the target and its cache, for draft models that read its hidden states. Called after begin."""
        for part in self.parts:
            part.follow(target, cache)

    def admit(self, slot: int, sequence: Sequence) -> None:
        """Put a request into a slot."""
        for part in self.parts:
            part.admit(slot, sequence)

    def move(self, source: int, target: int) -> None:
        """Move the request in slot `source` to slot `target`."""
        for part in self.parts:
            part.move(source, target)

    def release(self, slot: int) -> None:
        """Free a slot, and keep nothing of its request."""
        for part in self.parts:
            part.release(slot)

    def forget(self) -> None:
        """Drop the drafts of a failed step."""
        for part in self.parts:
            part.forget()

    def propose(self, batch: Batch) -> Proposal | None:
        """Draft for every sequence; return None if there is no draft for any."""

    def observe(self, outcome: Outcome) -> None:
        """Learn from a step's outcome. Called after steps without a proposal too."""
        return None
