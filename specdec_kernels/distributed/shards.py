# SPDX-License-Identifier: Apache-2.0
"""The split of a vocabulary over ranks, and the few entries that move between ranks before a call.

Sums over a row are sums over chunks of 1,024 entries, so each chunk must be on one rank. If a slice ends inside a
chunk, the rank that holds most of the chunk receives the rest: at most 1,023 entries per row and boundary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import prod

import torch
import torch.distributed as dist

from specdec_kernels.distributed.collectives import all_to_all
from specdec_kernels.ops import _check
from specdec_kernels.registry import CHUNK, MAX_VOCABULARY

EXCHANGES = ("chunks", "rows")


@dataclass
class Traffic:
    """The communication of all calls so far. The numbers are the same on every rank."""

    calls: int = 0
    rounds: int = 0  # collective operations, in sequence
    gathered: int = 0  # bytes that every rank holds after the gathers, sent by all ranks together
    moved: int = 0  # bytes of entries that were sent to another rank

    @property
    def bytes(self) -> int:
        return self.gathered + self.moved


@dataclass(frozen=True)
class Shards:
    """A vocabulary split over the ranks of a process group: rank r holds the ids [bounds[r], bounds[r + 1]).

    Args:
        vocab_size: V, the length of whole rows.
        bounds: R + 1 ascending ids from 0 to V; a rank's slice may be empty. Default: slices as even as possible, the
            first ones larger by one (as ``torch.tensor_split``). If every bound is a multiple of 1,024 no entry moves
            before a call; otherwise at most 1,023 entries move per row and bound.
        group: a ``torch.distributed`` process group; None: the default one.
        exchange: "chunks": ranks exchange sums of chunks, and no rank holds a whole row; CPU tensors only. "rows": each
            rank receives the whole rows of its share of the requests (docs/sharded.md shows when that is better). None:
            "rows" on a GPU, else "chunks".
        checked: whether every call begins with a round in which ranks compare their arguments, large ones (such as a
            draft's whole rows) by a fingerprint. If False, nothing waits for a GPU, and calls that differ end in the
            process group's timeout or in different results.

    Raises:
        TypeError, ValueError: naming the argument, what was wanted and what came.

    Example:
        >>> shards = Shards(151_936)  # on each of 4 ranks
        >>> shards.bounds
        (0, 37984, 75968, 113952, 151936)
    """

    vocab_size: int
    bounds: tuple[int, ...] = ()
    group: dist.ProcessGroup | None = None
    exchange: str | None = None
    checked: bool = True
    traffic: Traffic = field(default_factory=Traffic, compare=False)

    def __post_init__(self):
        V, R = _check.integer("Shards", "vocab_size", self.vocab_size, 1, MAX_VOCABULARY, "in [1, 2^24]"), self.ranks
        object.__setattr__(self, "vocab_size", V)
        if not self.bounds:
            sizes = [V // R + (r < V % R) for r in range(R)]
            object.__setattr__(self, "bounds", tuple(accumulate(sizes, initial=0)))
        bounds = tuple(int(b) for b in self.bounds)
        if len(bounds) != R + 1 or bounds[0] != 0 or bounds[-1] != V or any(a > b for a, b in pairwise(bounds)):
            raise ValueError(f"Shards: bounds must be {R + 1} ascending ids from 0 to {V}, got {bounds}")
        object.__setattr__(self, "bounds", bounds)
        if self.exchange not in (None, *EXCHANGES):
            raise ValueError(f"Shards: exchange must be None, 'chunks' or 'rows', got {self.exchange!r}")

    @property
    def rank(self) -> int:
        return dist.get_rank(self.group)

    @property
    def ranks(self) -> int:
        return dist.get_world_size(self.group)

    @property
    def here(self) -> slice:
        """The ids on this rank: its slice of whole rows is rows[..., shards.here]."""
        return slice(*self.bounds[self.rank : self.rank + 2])

    @property
    def size(self) -> int:
        """The number of entries of a row on this rank."""
        return self.here.stop - self.here.start

    def chunk_owners(self) -> tuple[int, ...]:
        """Return R + 1 indices of chunks, `first`: rank r has the chunks [first[r], first[r + 1])."""

        def owner(chunk):
            begin, end = chunk * CHUNK, min((chunk + 1) * CHUNK, self.vocab_size)
            held = [min(b, end) - max(a, begin) for a, b in pairwise(self.bounds)]
            return held.index(max(held))

        owners = [owner(c) for c in range(-(-self.vocab_size // CHUNK))]
        return tuple(sum(o < r for o in owners) for r in range(self.ranks + 1))

    def rearranged(self, op: str, rows: torch.Tensor, to: tuple[int, ...]) -> torch.Tensor:
        """Return this rank's slice of the rows under the bounds `to`. Entries that change ranks are sent."""
        moves = [overlap(self.bounds, to, r, s) for r in range(self.ranks) for s in range(self.ranks) if r != s]
        if not any(end > begin for begin, end in moves):
            return rows  # all ranks take this branch together
        me, lead = self.rank, rows.shape[:-1]
        mine = self.bounds[me]
        n = prod(lead)
        flat = rows.reshape(n, rows.size(-1))

        def piece(begin, end):
            return flat[:, begin - mine : end - mine]

        leaves = [overlap(self.bounds, to, me, s) if s != me else (0, 0) for s in range(self.ranks)]
        comes = [overlap(self.bounds, to, r, me) if r != me else (0, 0) for r in range(self.ranks)]
        gone = [piece(begin, end) if end > begin else flat[:, :0] for begin, end in leaves]
        parts = all_to_all(op, self, gone, [(n, end - begin) for begin, end in comes])
        self.traffic.moved += sum(end - begin for begin, end in moves) * n * rows.element_size()
        kept = overlap(self.bounds, to, me, me)
        parts[me] = piece(*kept) if kept[1] > kept[0] else flat[:, :0]
        return torch.cat(parts, -1).view(*lead, to[me + 1] - to[me])


def slices(vocab_size: int, first: tuple[int, ...]) -> tuple[int, ...]:
    """Return the bounds, in ids, of the chunks [first[r], first[r + 1]). The last rank has all remaining ids."""
    return (*(min(c * CHUNK, vocab_size) for c in first[:-1]), vocab_size)


def overlap(bounds, to, r, s) -> tuple[int, int]:
    """Return the ids that are on rank r under `bounds` and on rank s under `to`; (0, 0) if there are none."""
    begin, end = max(bounds[r], to[s]), min(bounds[r + 1], to[s + 1])
    return (begin, end) if begin < end else (0, 0)
