# SPDX-License-Identifier: Apache-2.0
"""The bytes that a step sends for its rows, against gathering the rows: V = 151,936 in bfloat16, five drafts, four
ranks."""

import pytest
import torch
from support.ranks import Ranks

from bench import sharded
from specdec_kernels.rows import Rows

RANKS = 4
ROWS = sharded.B * (sharded.G + 1)
WHOLE = ROWS * sharded.V * 2


TOP_P = (0.5, 0.9, 0.99)
FLAT_TO_PEAKED = {  # kind of logits -> scales; the cutoff lies among few entries, many, or ties in 16 bits
    "normal": (0.01, 0.1, 0.3, 0.6, 1, 2, 3, 5),
    "gumbel": (0.5, 1, 2),
    "zipf": (0.8, 1, 2),
}


def row(kind, scale):
    generator = torch.Generator().manual_seed(3)
    if kind == "normal":
        z = torch.randn(1, sharded.V, generator=generator)
    elif kind == "gumbel":
        z = -torch.rand(1, sharded.V, generator=generator).log().neg().log()
    else:
        z = -torch.randperm(sharded.V, generator=generator)[None].add(1.0).log()
    return (scale * z).bfloat16()


def nucleus_bytes(rank, kind, scale):
    """Return the bytes that top-p adds to those that a rank sends for a row."""
    from specdec_kernels import distributed

    z, told = row(kind, scale), []
    for top_p in (1.0, *TOP_P):
        shards = distributed.Shards(sharded.V, sharded.bounds(RANKS, True))
        distributed.row_stats(Rows(z[:, shards.here], temperature=0.8, top_p=top_p), shards=shards)
        told.append(shards.traffic.gathered // RANKS)
    return {top_p: n - told[0] for top_p, n in zip(TOP_P, told[1:])}


def counted(rank, aligned):
    given = sharded.rows(0)
    names = (*sharded.SETTINGS, sharded.WHOLE_ROWS)
    found = {name: sharded.step(name, given, sharded.split(name, RANKS, aligned)) for name in names}
    return {name: (x.rounds, x.gathered, x.moved) for name, x in found.items()}


def raced(rank):
    """Return (rounds, bytes gathered) of a race on 6 rows whose stats are at hand, by the number of places k."""
    from specdec_kernels import distributed

    z = torch.cat([row("normal", scale) for scale in (0.5, 1, 2) * 2])
    found, at = {}, {"seed": torch.arange(6), "offset": torch.arange(6)}
    for k in (1, 3):
        shards = distributed.Shards(sharded.V, sharded.bounds(RANKS, True))
        stats = distributed.row_stats(z[:, shards.here], shards=shards)
        before = shards.traffic.rounds, shards.traffic.gathered
        distributed.sample(Rows(z[:, shards.here], stats=stats), k=k, race=True, shards=shards, **at)
        found[k] = shards.traffic.rounds - before[0], shards.traffic.gathered - before[1]
    return found


@pytest.fixture(scope="module")
def ranks():
    group = Ranks(RANKS)
    yield group
    group.stop()


@pytest.mark.parametrize("aligned", [True, False])
def test_a_steps_bytes(ranks, aligned):
    first, *others = ranks.call(counted, aligned)
    assert all(x == first for x in others)
    rounds, gathered, moved = first.pop(sharded.WHOLE_ROWS)
    # The rounds: the arguments; whether all ranks can make the call; the rows, of which each rank lacks three quarters
    # for its 2 of 8 requests; and the tokens, counts, logprobs and status of 2 requests per rank.
    assert (rounds, moved) == (4, WHOLE * 3 // 4)
    assert gathered == RANKS * (2 * 64 * 8 + 2 * ((sharded.G + 1) * (8 + 4) + 4 + 4))
    # 37,984 entries per rank: 96, 192 and 288 of a chunk are on the other side of a boundary
    moved = {moved for _, _, moved in first.values()}
    assert moved == {0 if aligned else ROWS * (96 + 192 + 288) * 2}

    share = {name: gathered / WHOLE for name, (_, gathered, _) in first.items()}
    assert share["T = .8, draft's stats at hand"] <= 0.005
    assert share["T = .8"] - share["T = .8, draft's stats at hand"] <= 0.004
    assert share["top-k 50"] - share["T = .8"] <= 0.003
    rounds = {name: rounds - (not aligned) for name, (rounds, _, _) in first.items()}
    assert rounds["greedy"] == 3  # the arguments, maxima, ids
    assert rounds["T = .8"] == rounds["T = .8, draft's stats at hand"] == 4


@pytest.mark.parametrize("kind", FLAT_TO_PEAKED)
def test_a_nucleus_bytes(ranks, kind):
    for scale in FLAT_TO_PEAKED[kind]:
        first, *others = ranks.call(nucleus_bytes, kind, scale)
        assert all(x == first for x in others)
        assert max(first.values()) <= 8192, (scale, first)


def test_a_races_bytes(ranks):
    """After the arguments, one collective sends the key, id and entry of each of a rank's k best, 16 bytes each."""
    first, *others = ranks.call(raced)
    assert all(x == first for x in others)
    (rounds, one), (same, three) = first[1], first[3]
    assert rounds == same == 2
    assert three - one == RANKS * 6 * 2 * 16
