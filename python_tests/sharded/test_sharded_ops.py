# SPDX-License-Identifier: Apache-2.0
"""Ops on rows that are split over ranks give, bit for bit, their results on whole rows, on every rank."""

import numpy as np
import pytest
import torch
from support import flat, sharded_cases
from support.ranks import Ranks
from support.sharded_checks import differ, rows_with_other_stats, views_differ
from support.surface import plain
from support.tiers import TIER

from specdec_kernels.distributed.shards import EXCHANGES
from specdec_kernels.distributed.whole_rows import logits_of, with_logits

CALLS = {"chunks": 10_000, "rows": 2_000} if TIER == "all" else {"chunks": 240, "rows": 120}


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def ranks(request):
    group = Ranks(request.param)
    yield group
    group.stop()


def test_many_rows(ranks):
    assert ranks.call(rows_with_other_stats, ranks.n) == [0] * ranks.n


def written(rank, n, exchange):
    """Return whether verify_chain fills the caller's `out` with the results of whole rows. `out` and this rank's rows
    share one piece of memory: two of its tensors are before the rows, two after."""
    import specdec_kernels as sk
    from specdec_kernels import distributed

    V = 3000  # slices of whole chunks: by the exchange "chunks" no entry moves, and the op reads the rows in place
    shards = distributed.Shards(V, tuple(min(1024 * r, V) for r in range(n)) + (V,), exchange=exchange)
    op, args = sharded_cases.chain(3, np.random.default_rng(3), V, V, torch.float32, lambda rng: 5)
    _, args = flat.folded(op, (), args)
    want = sk.verify_chain(**args)
    whole = logits_of(args["target"])[..., shards.here]
    n = whole.numel()
    *left, mine, right, last = torch.full((n + 800,), float(rank)).split([200, 200, n, 200, 200])
    rows = mine.view_as(whole).copy_(whole)
    places = zip((*left, right, last), want, strict=True)
    out = [place[: x.nbytes // 4].view(x.dtype).view(x.shape) for place, x in places]
    target = with_logits(args["target"], rows)
    got = distributed.verify_chain(**args | {"target": target, "out": out}, shards=shards)
    assert all(a is b for a, b in zip(got, out))
    return all(map(torch.equal, map(plain, out), map(plain, want)))


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_out(ranks, exchange):
    assert ranks.call(written, ranks.n, exchange) == [True] * ranks.n


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_two_views_of_one_row_are_two_rows(ranks, exchange):
    assert ranks.call(views_differ, ranks.n, exchange) == [[]] * ranks.n


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_every_op_as_on_whole_rows(ranks, exchange):
    each = CALLS[exchange] // 4
    first = ranks.n * each
    for rank, found in enumerate(ranks.call(differ, first, first + each, ranks.n, exchange)):
        assert not isinstance(found, Exception), found
        assert found == [], (rank, len(found), found[0])
