# SPDX-License-Identifier: Apache-2.0
"""A Session whose steps are verified over ranks: a failure of one rank ends the run on all, without another try."""

import math

import pytest
from support import plain_views, tiny
from support.ranks import Ranks

SECONDS = 10.0


@pytest.fixture
def ranks():
    group = Ranks(2, SECONDS)
    yield group
    group.stop()


class Boom(Exception):
    """An error that no part of the loop raises by itself."""


def served(rank, place, parameters):
    """Run three requests with these parameters on two ranks. Rank 1 raises once, in its third step or in its second
    prompt.

    Return the tokens, or the error that ended the run and the number of steps that this rank began.
    """
    from examples.tensor_parallel import OverRanks
    from specdec_kernels import decode, distributed

    shards, passes = distributed.Shards(32), {"prompt": 0, "step": 0}
    target, draft = (decode.adapt(model, lean=False) for model in (tiny.llama(0), tiny.nearby(tiny.llama(0))))
    whole = target.forward

    def forward(ids, start, cache, slot=0, keep="all", **options):
        logits = whole(ids, start, cache, slot, keep, **options)
        kind = "prompt" if logits is None else "step"
        passes[kind] += 1
        if rank == 1 and (kind, passes[kind]) in (("step", 3), ("prompt", 2)) and kind == place:
            raise Boom(place)
        return None if logits is None else logits[..., shards.here].contiguous()

    target.forward = forward
    session = decode.Session(target, OverRanks(decode.ModelDrafter(draft, 2), shards), max_batch=3, capacity=40)
    for request in tiny.requests(3, **parameters):
        session.submit(request)
    try:
        list(session.events())
    except RuntimeError as error:
        return str(error), passes["step"]
    return [result.tokens for result in session.results.values()]


@pytest.mark.slow
def test_penalties_and_a_bias_over_ranks(ranks):
    views = dict(repetition_penalty=1.4, frequency_penalty=0.5, logit_bias={3: 2.0, 9: -math.inf})
    expected = [plain_views.greedy(tiny.llama(0), r) for r in tiny.requests(3, **views)]
    assert ranks.call(served, "nowhere", views) == [expected] * 2
    assert expected != [plain_views.greedy(tiny.llama(0), r) for r in tiny.requests(3)]


@pytest.mark.slow
@pytest.mark.parametrize("place, steps", [("step", 3), pytest.param("prompt", 0, marks=pytest.mark.thorough)])
def test_what_fails_on_one_rank(ranks, place, steps):
    one, other = ranks.call(served, "nowhere", {})
    assert one == other and [*map(len, one)] == [r.max_new_tokens for r in tiny.requests(3)]
    (waited, _), (failed, passes) = ranks.call(served, place, {})
    assert failed == (
        f"{place}: a session over ranks must succeed on all of them, got an error on this one: Boom: {place}"
    )
    assert passes == steps, "it was not taken again"
    assert waited.startswith("step: a session over ranks must succeed on all of them, got an error on this one: ")
    assert "verify_chain: all ranks must answer within the process group's timeout" in waited
