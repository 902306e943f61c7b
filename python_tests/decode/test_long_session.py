# SPDX-License-Identifier: Apache-2.0
"""A long session: results are popped, nothing of a request remains, and a drafter serves one run at a time."""

import gc
from collections import deque
from collections.abc import Mapping

import pytest
import torch
from support import tiny
from support.drafters import KINDS

from specdec_kernels.decode import (
    LookupThenModel,
    ModelDrafter,
    PromptLookupDrafter,
    Request,
    Session,
    adapt,
    generate,
    stream,
)
from specdec_kernels.decode.transfers import Reading

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def models():
    return adapt(tiny.llama(0)), adapt(tiny.nearby(tiny.llama(0)))


# Attribute -> the largest size of a container that stops growing: the results of a step for its batch of 3, a histogram
# of draft lengths (0 to a tree's 12 nodes), measurements of 128 steps, and the numbers of tokens seen in a pass (at
# most 13 per request).
OF_A_STEP = dict.fromkeys(("kinds", "survival", "worth", "looked_up"), 3)
FILLS_UP = OF_A_STEP | {"widths": 13, "passes": 128, "seen": 3 * 13}


def entries(root) -> int:
    """Return the number of entries of all containers reachable from `root`. A tensor counts as one entry, and models
    are skipped. Containers in FILLS_UP are only checked against their size."""
    found, todo, seen = 0, [root], set()
    while todo:
        x = todo.pop()
        if id(x) in seen or isinstance(x, (torch.nn.Module, type, torch.dtype, torch.device)) or callable(x):
            continue
        seen.add(id(x))
        if isinstance(x, Reading):  # what the last step read, if it had a tree
            assert len(x.rows) <= 3
            continue
        if isinstance(x, Mapping):
            found += len(x)
            todo += [*x.keys(), *x.values()]
        elif isinstance(x, (list, tuple, set, frozenset, deque)):
            found += len(x)
            todo += x
        if hasattr(x, "__dict__") and "decode" in type(x).__module__ and not hasattr(x, "new_cache"):
            for name, held in vars(x).items():
                if name in FILLS_UP:
                    assert len(() if held is None else held) <= FILLS_UP[name], (type(x).__name__, name, held)
                else:
                    found += 1
                    todo.append(held)
    return found


def some(i):
    prompt = [(7 * i + j) % 29 + 3 for j in range(3 + i % 5)]
    return Request(prompt * 2, 4 + i % 3, temperature=0.7, seed=i)


SLOW = [pytest.mark.slow, pytest.mark.thorough]


@pytest.mark.parametrize("kind", [pytest.param(k, marks=() if k in ("both", "plain") else SLOW) for k in KINDS])
def test_memory_does_not_grow(models, kind):
    """All containers reachable from a session are counted after 41 and after 120 requests, some of them cancelled.
    Kills: a list of results, an index of a text, or a table of drafts that is kept."""
    target, draft = models
    session = Session(target, KINDS[kind](draft), max_batch=3, capacity=40, tokenizer=tiny.Letters())
    rule = dict(rule="chow", alpha=0.4) if kind == "cascade" else {}
    counted, popped = [], []
    for i in range(120):
        request = some(i)
        session.submit(Request(request.prompt, request.max_new_tokens, temperature=0.7, seed=i, **rule))
        if i % 7 == 3:
            session.cancel(i)
        for _ in range(2):
            popped += [(e.index, session.pop(e.index)) for e in session.step() if e.finished]
        if i in (40, 119):
            popped += [(e.index, session.pop(e.index)) for e in session.events() if e.finished]
            assert not session.results and not session.batch and not session.waiting
            counted.append(entries({"session": session, "drafter": session.drafter}))
    assert sorted(i for i, _ in popped) == [*range(120)]
    assert counted[0] == counted[1]
    assert session.stats.new_tokens == sum(len(result.tokens) for _, result in popped)


def test_nothing_of_a_request_stays(models):
    """No container refers to a popped result, and its keys are cleared from the caches."""
    target, draft = models
    session = Session(target, KINDS["both"](draft), max_batch=2, capacity=40)
    index = session.submit(Request([11, 12, 13], 5))
    list(session.events())
    result = session.pop(index)
    gc.unfreeze()  # so that containers made before the tests (conftest.py) are searched too
    gc.collect()
    holders = [x for x in gc.get_referrers(result) if x is not globals() and not hasattr(x, "f_code")]
    gc.freeze()
    assert not [x for x in holders if isinstance(x, (list, dict, deque))]
    assert not session.cache.layers[0][0].any() and not session.drafter.model.model.cache.layers[0][0].any()


def test_pop(models):
    session = Session(models[0], max_batch=1, capacity=40)
    first, second, third = (session.submit(some(i)) for i in range(3))
    session.step()
    for index, why in [(first, "has not ended"), (second, "has not ended")]:
        with pytest.raises(
            ValueError, match=f"pop: index must be that of a request that has ended, got {index}, which {why}"
        ):
            session.pop(index)
    for index in (3, -1, "0", None, True, 1.0):
        with pytest.raises(ValueError, match=f"pop: index must be that of one of 3 submitted requests, got {index}"):
            session.pop(index)
    session.cancel(second)
    assert session.pop(second).finished == "cancelled"
    list(session.events())
    with pytest.raises(ValueError, match="pop: index must be .*, got 1, which was taken before"):
        session.pop(second)
    assert session.pop(first).tokens == generate(models[0], [some(0)]).results[0].tokens
    assert [*session.results] == [third] and not session.cancel(first) and not session.cancel(second)
    assert session.submit(some(1)) == 3, "an index is not given twice"


def test_a_drafter_serves_one_run_at_a_time(models):
    """A second run is refused before it begins. The first is not disturbed."""
    target, draft = models
    lookup, model = PromptLookupDrafter(4), ModelDrafter(draft, 3)
    todo = [some(i) for i in range(3)]
    want = [r.tokens for r in generate(target, todo, LookupThenModel(lookup, model)).results]
    for kind, drafter, part in [
        (
            "LookupThenModel",
            LookupThenModel(lookup, model),
            "PromptLookupDrafter",
        ),  # another drafter with the same parts
        ("PromptLookupDrafter", lookup, "PromptLookupDrafter"),
        ("ModelDrafter", model, "ModelDrafter"),
    ]:
        first = Session(target, LookupThenModel(lookup, model), max_batch=2, capacity=40)
        indices = [first.submit(request) for request in todo]
        first.step()
        text = f"drafter must not be in use, got {kind}, whose {part} serves another run that has not ended"
        for begin in (
            lambda d: Session(target, d),
            lambda d: stream(target, todo, d),
            lambda d: generate(target, todo, d),
        ):
            with pytest.raises(ValueError, match=text):
                begin(drafter)
        list(first.events())
        assert [first.results[i].tokens for i in indices] == want
        second = Session(target, drafter, max_batch=2, capacity=40)  # the first has ended
        with pytest.raises(ValueError, match="submit: the session's drafter, LookupThenModel, serves a later session"):
            first.submit(todo[0])
        assert second.submit(todo[0]) == 0 and [e for e in second.events()][-1].finished == "length"


def test_a_run_that_is_broken_off_frees_its_drafter(models):
    target, draft = models
    drafter = LookupThenModel(PromptLookupDrafter(4), ModelDrafter(draft, 3))
    todo = [some(i) for i in range(3)]
    want = [r.tokens for r in generate(target, todo, drafter).results]
    begun = stream(target, todo, drafter)
    next(begun)
    with pytest.raises(ValueError, match="serves another run"):
        generate(target, todo, drafter)
    begun.close()
    assert [r.tokens for r in generate(target, todo, drafter).results] == want
    dropped = stream(target, todo, drafter)
    next(dropped)
    del dropped
    gc.collect()
    assert [r.tokens for r in generate(target, todo, drafter).results] == want
    closed = Session(target, drafter)
    closed.submit(todo[0])
    closed.close()
    assert not closed.busy and [r.tokens for r in generate(target, todo, drafter).results] == want


def test_two_streams_at_once_have_drafters_of_their_own(models):
    target, draft = models
    todo = [some(i) for i in range(3)]
    make = lambda: LookupThenModel(PromptLookupDrafter(4), ModelDrafter(draft, 3))  # noqa: E731
    runs = [stream(target, todo, make()) for _ in range(2)]
    tokens = [{}, {}]
    for events in zip(*runs):
        for seen, event in zip(tokens, events):
            seen.setdefault(event.index, []).extend(event.tokens)
    assert tokens[0] == tokens[1]


def test_statistics_count_what_was_emitted(models):
    """If a text ends inside a draft, the rest of the draft is not counted: accepted tokens are tokens of the text."""
    target, _ = models
    [whole] = generate(target, [Request([3, 4, 5], 30)]).results
    for end in range(1, 9):
        eos = whole.tokens[end]
        if eos in whole.tokens[:end]:
            continue
        output = generate(target, [Request([3, 4, 5], 30, eos=(eos,))], ModelDrafter(target, 8))
        stats, n = output.stats, end + 1
        assert output.results[0].tokens == whole.tokens[:n] and stats.new_tokens == n
        assert stats.accepted <= n and stats.tested == stats.accepted, "a draft by the target itself is accepted"
        own = output.results[0].stats
        assert (own.accepted, own.tested, own.drafted) == (stats.accepted, stats.tested, stats.drafted)
        assert stats.accepted == min(n, 8), "8 drafts a step, then a token of the target's own"
