# SPDX-License-Identifier: Apache-2.0
"""Requests are added and cancelled while others are decoded: none is lost, none affects another, and slots are freed at
once."""

import random

import pytest
import torch
from support import tiny
from support.drafters import DRAFTERS
from support.sessions import come_and_go
from support.tiny import InDoubles

from specdec_kernels.decode import ModelDrafter, Request, Session, generate

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def models():
    return InDoubles(tiny.llama(0)), InDoubles(tiny.nearby(tiny.llama(0)))


RULES = [("exact", None), ("exact", None), ("lenience", 0.5), ("typical", None)]


def some_requests(n, rng, rules):
    """Yield requests that differ in prompt, length, parameters, seed, ends and rule."""
    prompts = [r.prompt for r in tiny.requests()]
    for seed in range(n):
        rule, alpha = rng.choice(rules)
        yield Request(
            rng.choice(prompts)[: rng.randint(1, 12)],
            max_new_tokens=rng.randint(1, 16),
            temperature=rng.choice([0.0, 0.7, 1.0]),
            top_k=rng.choice([0, 5]),
            top_p=rng.choice([1.0, 0.9]),
            seed=seed,
            eos=(rng.randrange(32),),
            stop=rng.choice([(), ("ab", "t")]),
            rule=rule,
            alpha=alpha,
        )


CASES = [("both", 60), *(pytest.param(kind, 200, marks=pytest.mark.thorough) for kind in DRAFTERS)]


@pytest.mark.parametrize("kind, n", CASES)
@pytest.mark.slow
def test_requests_come_and_go(models, kind, n):
    """Each request gets the same tokens and text as alone; a cancelled one gets the beginning of them. Kills: a slot
    that is not returned or is returned twice, a cache or drafter state that stays with the slot, batch parameters
    gathered before a change."""
    target, draft = models
    rng, drafter, letters = random.Random(f"{kind} {n}"), DRAFTERS[kind](draft), tiny.Letters()
    rules = RULES if drafter is not None and set(drafter.rules) >= {"lenience", "typical"} else RULES[:1]
    todo = list(some_requests(n, rng, rules))
    session = Session(target, drafter, max_batch=5, capacity=32, tokenizer=letters)
    seen, cancelled = come_and_go(session, todo, rng)
    alone = generate(target, todo, DRAFTERS[kind](draft), max_batch=1, tokenizer=letters).results
    assert len(session.results) == n and sorted(seen) == list(range(n))
    for i, (result, whole) in enumerate(zip(session.results.values(), alone)):
        events = seen[i]
        assert [t for e in events for t in e.tokens] == result.tokens and "".join(e.text for e in events) == result.text
        assert [e.finished for e in events] == [None] * (len(events) - 1) + [result.finished]
        if i in cancelled:
            assert result.finished == "cancelled" and result.tokens == whole.tokens[: len(result.tokens)]
        else:
            assert (result.tokens, result.text, result.finished) == (whole.tokens, whole.text, whole.finished)
    some = [len(session.results[i].tokens) for i in cancelled]
    assert 0 in some and max(some) > 2, "requests were cancelled while they waited, and while they were decoded"


def test_a_cancelled_request_frees_its_slot(models):
    target, _ = models
    session = Session(target, max_batch=1)
    first, second = (session.submit(Request([1, 2], 8, seed=s, temperature=1.0)) for s in (1, 2))
    assert (first, second) == (0, 1)
    [event] = session.step()
    assert event.index == first
    assert session.cancel(first) and not session.cancel(first) and not session.batch
    last, event = session.step()  # the second has its slot in the very next step
    assert (last.index, last.tokens, last.finished) == (first, [], "cancelled") and event.index == second
    assert (
        session.results[first].tokens
        == generate(target, [Request([1, 2], 1, seed=1, temperature=1.0)]).results[0].tokens
    )
    assert session.cancel(second) and session.busy and [e.index for e in session.events()] == [second]
    assert not session.busy and session.step() == [] and not session.cancel(second)


def test_held_text_comes_with_the_last_event(models):
    """The start of a possible stop string is held back. A cancelled request's text is that of its tokens."""
    target, _ = models
    letters = tiny.Letters()
    token = generate(target, [Request([1, 2], 1)]).results[0].tokens[0]
    stop = letters.decode([token]) + "\u2603"
    session = Session(target, max_batch=1, tokenizer=letters)
    index = session.submit(Request([1, 2], 9, stop=(stop,)))
    [event] = session.step()
    assert (event.tokens, event.text) == ([token], "")
    session.cancel(index)
    [event] = session.events()
    assert event.text == letters.decode([token]) == session.results[index].text


def test_errors(models):
    target, draft = models
    session = Session(target, ModelDrafter(draft, 3), max_batch=2, capacity=10)
    ok = session.submit(Request([1], 4))
    cases = [
        (lambda: session.submit(Request([1, 2], 9)), r"fit a slot's 10 positions, request 1 needs 11"),
        (lambda: session.submit(Request([99], 4)), r"prompt ids must lie in \[0, V=32\), request 1 has 99"),
        (lambda: session.submit(Request([1], 4, stop=("a",))), r"stop strings need a tokenizer \(request 1\)"),
        (lambda: session.cancel(1), "index must be that of one of 1 submitted requests, got 1"),
        (lambda: session.cancel(-1), "index must be that of one of 1 submitted requests, got -1"),
        (lambda: Session(target, max_batch=0), "max_batch must be >= 1, got 0"),
        (lambda: Session(target, capacity=0), "capacity must be >= 1, got 0"),
    ]
    for call, text in cases:
        with pytest.raises(ValueError, match=text):
            call()
    # Refused requests have changed nothing.
    assert [t for e in session.events() for t in e.tokens] == generate(target, [Request([1], 4)]).results[0].tokens
    assert session.results[ok].finished == "length" and torch.is_inference_mode_enabled() is False
