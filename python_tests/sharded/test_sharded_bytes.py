# SPDX-License-Identifier: Apache-2.0
"""What a step tells of its rows, against gathering them: V = 151,936 in bfloat16, five drafts, four ranks."""

import pytest
from support.ranks import Ranks

from bench import sharded

RANKS = 4
ROWS = sharded.B * (sharded.G + 1)
WHOLE = ROWS * sharded.V * 2


def counted(rank, aligned):
    from specdec_kernels import distributed

    given = sharded.rows(0)
    bounds = sharded.bounds(RANKS, aligned)
    found = {name: sharded.step(name, given, distributed.Shards(sharded.V, bounds)) for name in sharded.SETTINGS}
    return {name: (x.rounds, x.gathered, x.moved) for name, x in found.items()}


@pytest.fixture(scope="module")
def ranks():
    group = Ranks(RANKS)
    yield group
    group.stop()


@pytest.mark.parametrize("aligned", [True, False])
def test_a_steps_bytes(ranks, aligned):
    first, *others = ranks.call(counted, aligned)
    assert all(x == first for x in others)
    # 37,984 entries a rank: 96, 192 and 288 of a chunk lie on the other side of a boundary
    moved = {moved for _, _, moved in first.values()}
    assert moved == {0 if aligned else ROWS * (96 + 192 + 288) * 2}

    share = {name: gathered / WHOLE for name, (_, gathered, _) in first.items()}
    assert share["T = .8, draft's stats at hand"] <= 0.005
    assert share["T = .8"] - share["T = .8, draft's stats at hand"] <= 0.004
    assert share["top-k 50"] - share["T = .8"] <= 0.003
    nucleus = first["top-p .9"][1] - first["T = .8"][1]
    assert nucleus <= 8192 * RANKS * ROWS

    rounds = {name: rounds - (not aligned) for name, (rounds, _, _) in first.items()}
    assert rounds["greedy"] == 3  # the arguments, maxima, ids
    assert rounds["T = .8"] == rounds["T = .8, draft's stats at hand"] == 4
