# SPDX-License-Identifier: Apache-2.0
"""Which part of a vocabulary lies on which rank, and the few entries that change hands before a call.

Sums over a row are made of chunks of 1,024 entries, so a chunk has to lie on one rank. Where a slice ends inside one,
the rank that holds the most of it is handed the rest: at most 1,023 entries a row and boundary.
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
    """What the calls so far have cost, the same on every rank."""

    calls: int = 0
    rounds: int = 0  # collectives, one after the other
    gathered: int = 0  # bytes that all ranks together told each other, as every rank holds them in the end
    moved: int = 0  # bytes of entries that changed hands

    @property
    def bytes(self) -> int:
        return self.gathered + self.moved


@dataclass(frozen=True)
class Shards:
    """A vocabulary split over the ranks of a process group: rank r holds the ids [bounds[r], bounds[r + 1]).

    Args:
        vocab_size: V, of whole rows.
        bounds: R + 1 ascending ids from 0 to V; a rank may have none. Not given: as even as can be, the first with
            one more (what ``torch.tensor_split`` gives). Multiples of 1,024 cost nothing on top; others, see above.
        group: a ``torch.distributed`` process group; None: the default one.
        exchange: "chunks": ranks tell each other what chunks of rows add up to, and no rank holds a row; CPU tensors
            only. "rows": each rank is handed the whole rows of its share of the requests (docs/sharded.md says when
            that is the better way). None: "rows" on a GPU, else "chunks".
        checked: every call begins with a round in which ranks compare their arguments; of large ones, such as a draft's
            rows that every rank has whole, a fingerprint. Without it nothing waits for a
            GPU, and calls that differ end in the process group's timeout, or in different results.

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
        """The ids that lie on this rank: rows[..., shards.here] of whole rows."""
        return slice(*self.bounds[self.rank : self.rank + 2])

    @property
    def size(self) -> int:
        """Entries of a row that lie on this rank."""
        return self.here.stop - self.here.start

    def chunk_owners(self) -> tuple[int, ...]:
        """R + 1 numbers of chunks: rank r has those from its own up to the next one's."""

        def owner(chunk):
            begin, end = chunk * CHUNK, min((chunk + 1) * CHUNK, self.vocab_size)
            held = [min(b, end) - max(a, begin) for a, b in pairwise(self.bounds)]
            return held.index(max(held))

        owners = [owner(c) for c in range(-(-self.vocab_size // CHUNK))]
        return tuple(sum(o < r for o in owners) for r in range(self.ranks + 1))

    def rearranged(self, op: str, rows: torch.Tensor, to: tuple[int, ...]) -> torch.Tensor:
        """This rank's slice [..., size] of rows, as it is where `to` are the bounds: what moves is sent."""
        moves = [overlap(self.bounds, to, r, s) for r in range(self.ranks) for s in range(self.ranks) if r != s]
        if not any(end > begin for begin, end in moves):
            return rows  # on all ranks alike
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
    """The ids where the chunks [first[r], first[r + 1]) begin; the last rank has all behind."""
    return (*(min(c * CHUNK, vocab_size) for c in first[:-1]), vocab_size)


def overlap(bounds, to, r, s) -> tuple[int, int]:
    """The ids that lie on rank r by `bounds` and on rank s by `to`; (0, 0) where there are none."""
    begin, end = max(bounds[r], to[s]), min(bounds[r + 1], to[s + 1])
    return (begin, end) if begin < end else (0, 0)
