# SPDX-License-Identifier: Apache-2.0
"""A step may raise anywhere. Requests that fail by themselves end with an error, others get the same tokens as alone,
no request is lost, and waiting ones get the slots."""

import copy

import pytest
import torch
from support import tiny
from support.drafters import KINDS
from support.sessions import check_events, run
from support.tiny import InDoubles

import specdec_kernels as sk
from specdec_kernels.decode import Request, Session, generate
from specdec_kernels.decode import session as session_module
from specdec_kernels.decode.isolation import each_alone
from specdec_kernels.decode.outcome import Outcome
from specdec_kernels.decode.proposal import Draft
from specdec_kernels.decode.sequence import Batch
from specdec_kernels.decode.step_times import StepTimes
from specdec_kernels.decode.transfers import Readback

pytestmark = pytest.mark.usefixtures("one_thread")

TREES = "kseq", "traversal", "adaptive tree"
PLACES = {  # place -> the drafters whose steps reach it; the places are all calls of a step, in order
    "propose": [*KINDS],
    "draft pass": [kind for kind in KINDS if kind not in ("plain", "lookup")],
    "draws": [kind for kind in KINDS if kind not in ("plain", "lookup", "hierarchical")],
    "target pass": [*KINDS],
    "verification": [kind for kind in KINDS],
    "commit": [*KINDS],
    "moving a path": TREES,
    "outcome": [*KINDS],
    "transfer": [*KINDS],
    "times": [*KINDS],
    "observe": [*KINDS],
}
PROMPT_PLACES = {"prompt of the target": [*KINDS], "admit": [*KINDS], "prompt of the draft": PLACES["draft pass"]}


class Boom(Exception):
    """An error that no part of the loop raises by itself."""


class Faults:
    """Raises at one place of a step, before or after the work there, if `concerns` is true of the requests being
    processed."""

    def __init__(self, place, when, concerns, error):
        self.place, self.when, self.concerns, self.error = place, when, concerns, error
        self.phase, self.batch, self.hits = "", (), 0

    def wrap(self, place, honest, phase="step"):
        def call(*args, **options):
            armed = place == self.place and self.phase == phase
            if armed and self.when == "before":
                self.strike()
            out = honest(*args, **options)
            if armed and self.when == "after":
                self.strike()
            return out

        return call

    def strike(self):
        if self.concerns(self):
            self.hits += 1
            raise self.error(self.place)

    def during(self, phase, honest):
        """Wrap a function of a batch or a sequence, so that faults know the phase and the requests while it runs."""

        def call(work):
            self.phase, self.batch = phase, work if isinstance(work, list) else [work]
            try:
                return honest(work)
            finally:
                self.phase = ""

        return call


def watched(model, faults, *places):
    """Return the model with places for faults in its passes."""
    model = copy.copy(model)
    forward = model.forward
    for place, phase in places:
        forward = faults.wrap(place, forward, phase)
    model.forward = forward
    return model


def session_with(faults, models, kind, patch, letters=None):
    target = watched(models[0], faults, ("target pass", "step"), ("prompt of the target", "prompt"))
    draft = watched(models[1], faults, ("draft pass", "step"), ("prompt of the draft", "prompt"))
    session = Session(target, KINDS[kind](draft), max_batch=3, capacity=40, tokenizer=letters)
    session._decode = faults.during("step", session._decode)
    session._read_prompt = faults.during("prompt", session._read_prompt)
    drafter, cache = session.drafter, session.cache
    drafter.propose, drafter.observe = (faults.wrap(n, getattr(drafter, n)) for n in ("propose", "observe"))
    drafter.admit = faults.wrap("admit", drafter.admit, "prompt")
    cache.compact = faults.wrap("moving a path", cache.compact)
    for name in ("verify_chain", "verify_tree", "VerifyChainOutput"):
        patch.setattr(sk, name, faults.wrap("verification", getattr(sk, name)))
    patch.setattr(sk, "sample", faults.wrap("draws", sk.sample))
    patch.setattr(Readback, "read", faults.wrap("transfer", Readback.read))
    patch.setattr(StepTimes, "seconds", faults.wrap("times", StepTimes.seconds))
    patch.setattr(session_module.Outcome, "read", faults.wrap("outcome", Outcome.read))
    for proposal in _proposals():
        patch.setattr(proposal, "commit_kv", faults.wrap("commit", proposal.commit_kv))
    return session


def _proposals(of=Draft.__mro__[1]):
    for kind in of.__subclasses__():
        yield kind
        yield from _proposals(kind)


def requests_for(kind):
    """Return five requests of several lengths. With adaptive drafts they are greedy, since draft lengths depend on the
    clock."""
    rule = dict(rule="chow", alpha=0.4) if kind == "cascade" else {}
    hot = 0.0 if kind.startswith("adaptive") else 0.9
    return [
        Request(r.prompt[: 5 + i], 4 + 2 * (i % 3), temperature=hot, seed=i, **rule)
        for i, r in enumerate(tiny.requests(5))
    ]


@pytest.fixture(scope="module")
def models():
    return InDoubles(tiny.llama(0)), InDoubles(tiny.nearby(tiny.llama(0)))


ALONE = {}


def alone(models, kind):
    if kind not in ALONE:
        drafter = KINDS[kind](models[1])
        ALONE[kind] = generate(models[0], requests_for(kind), drafter, max_batch=1).results
    return ALONE[kind]


def places(kind, among=PLACES):
    return [(place, when) for place, kinds in among.items() if kind in kinds for when in ("before", "after")]


SLOW = [pytest.mark.slow, pytest.mark.thorough]
SOME = [pytest.param(kind, marks=() if kind == "both" else SLOW) for kind in KINDS]
BOTH = [pytest.param(kind, marks=() if kind in ("both", "traversal") else SLOW) for kind in KINDS]


@pytest.mark.parametrize("error", [Boom, pytest.param(torch.OutOfMemoryError, marks=SLOW)])
@pytest.mark.parametrize("done", [0, 3])
@pytest.mark.parametrize("kind", BOTH)
def test_one_request_fails_wherever_a_step_may_raise(models, kind, done, error):
    """Every step with request 1 raises, from its first token or its fourth on. Kills: a loop that ends the whole batch,
    that loses a waiting request, that keeps the slot, or that counts a failed step's drafts as cached."""
    whole, ended = alone(models, kind), 0
    for place, when in places(kind):
        concerns = lambda f: any(s.index == 1 and len(s.result.tokens) >= done for s in f.batch)  # noqa: E731
        faults = Faults(place, when, concerns, error)
        with pytest.MonkeyPatch.context() as patch:
            session = session_with(faults, models, kind, patch)
            seen = run(session, requests_for(kind))
        check_events(session, seen)
        ended += session.results[1].finished == "error"
        for i, result in session.results.items():
            if i == 1 and result.finished == "error":
                assert result.error == f"step: {error.__name__}: {place}", (place, when)
                assert result.tokens == whole[i].tokens[: len(result.tokens)] and len(result.tokens) >= done
                assert done or kind.startswith("adaptive") or not result.tokens
            else:
                assert (result.tokens, result.finished) == (whole[i].tokens, "length"), (place, when, i)
        assert session.stats.new_tokens == sum(len(result.tokens) for result in session.results.values())
    spared = 8 if kind.startswith("adaptive") else 4  # places that a request alone may not reach
    assert ended >= len(places(kind)) - spared, "a last step drafts nothing, looked-up text is not drawn"


@pytest.mark.parametrize("kind", SOME)
def test_a_prompt_that_fails_concerns_its_request_alone(models, kind):
    whole = alone(models, kind)
    for place, when in places(kind, PROMPT_PLACES):
        for bad in ({1}, {0, 4}, set(range(5))):
            faults = Faults(place, when, lambda f, bad=bad: f.batch[0].index in bad, torch.OutOfMemoryError)
            with pytest.MonkeyPatch.context() as patch:
                session = session_with(faults, models, kind, patch)
                seen = run(session, requests_for(kind))
            check_events(session, seen)
            for i, result in session.results.items():
                if i in bad:
                    assert (result.tokens, result.error) == ([], f"prompt: OutOfMemoryError: {place}"), (place, when)
                else:
                    assert (result.tokens, result.finished) == (whole[i].tokens, "length"), (place, when, i)


@pytest.mark.parametrize("kind", SOME)
def test_a_step_that_fails_once_ends_nobody(models, kind):
    """The fault is gone when the halves are tried. Tokens are those of a run without it."""
    whole = alone(models, kind)
    for place, when in places(kind):
        for at in (1, 4):
            times = iter(range(1, 10**6))
            faults = Faults(place, when, lambda f, times=times, at=at: next(times) == at, Boom)
            with pytest.MonkeyPatch.context() as patch:
                session = session_with(faults, models, kind, patch)
                run(session, requests_for(kind))
            assert faults.hits == 1, (place, when)
            got = [(result.tokens, result.finished) for result in session.results.values()]
            assert got == [(result.tokens, "length") for result in whole], (place, when, at)


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("kind", BOTH)
def test_batches_that_are_too_large_are_split(models, kind, most):
    """The device has room for a limited number of requests: all are served, with the same tokens as alone."""
    concerns = lambda f: len(f.batch) > most  # noqa: E731
    faults = Faults("target pass", "before", concerns, torch.OutOfMemoryError)
    with pytest.MonkeyPatch.context() as patch:
        session = session_with(faults, models, kind, patch)
        run(session, requests_for(kind))
    assert faults.hits > 2
    assert [r.tokens for r in session.results.values()] == [r.tokens for r in alone(models, kind)]


@pytest.mark.parametrize("kind", SOME)
def test_everything_fails(models, kind):
    """Each request ends with an error, and the session accepts new ones afterwards."""
    for place, when in places(kind):
        faults = Faults(place, when, lambda f: True, Boom)
        with pytest.MonkeyPatch.context() as patch:
            session = session_with(faults, models, kind, patch)
            seen = run(session, requests_for(kind))
            check_events(session, seen)
            assert {(r.finished, len(r.tokens)) for r in session.results.values()} == {("error", 0)}, (place, when)
            faults.place = None
            again = run(session, requests_for(kind)) if when == "after" and place in ("draft pass", "observe") else {}
        assert not again or [[t for e in events for t in e.tokens] for events in again.values()] == [
            result.tokens for result in alone(models, kind)
        ]


@pytest.mark.parametrize("kind", SOME)
def test_an_interrupt_passes_and_the_session_goes_on(models, kind):
    """Ctrl-C is no request's error. The session can be continued, and nothing is lost."""
    spots = [(p, w, "step") for p, w in places(kind)] + [(p, w, "prompt") for p, w in places(kind, PROMPT_PLACES)]
    for place, when, phase in spots:
        times = iter(range(1, 10**6))
        faults = Faults(place, when, lambda f, times=times: next(times) == 3, KeyboardInterrupt)
        with pytest.MonkeyPatch.context() as patch:
            session = session_with(faults, models, kind, patch)
            todo = [session.submit(request) for request in requests_for(kind)]
            with pytest.raises(KeyboardInterrupt):
                list(session.events())
            list(session.events())
        got = [session.results[i].tokens for i in todo]
        assert got == [result.tokens for result in alone(models, kind)], (place, when, phase)


@pytest.mark.parametrize("whose", ["cache", "drafter"])
def test_a_request_that_cannot_be_moved_is_read_again(models, whose):
    session = Session(models[0], KINDS["both"](models[1]), max_batch=3, capacity=40)
    broken, hits = getattr(session, whose), []
    honest = broken.move

    def move(source, target):
        hits.append(1)
        if len(hits) % 2:
            raise Boom("move")
        return honest(source, target)

    broken.move = move
    run(session, requests_for("both"))
    assert len(hits) > 1 and [r.tokens for r in session.results.values()] == [r.tokens for r in alone(models, "both")]


class Stutters(tiny.Letters):
    """Raises if the ids to decode hold `word`."""

    def __init__(self, word):
        super().__init__()
        self.word = word

    def decode(self, ids, **options):
        if self.word in ids:
            raise KeyError(self.word)
        return super().decode(ids, **options)


def test_a_tokenizer_that_raises_ends_the_request_it_raised_for(models):
    todo, whole = requests_for("both"), alone(models, "both")
    word = next(t for t in whole[2].tokens[2:] if t > 2 and sum(t in r.tokens for r in whole) < 4)
    session = Session(models[0], KINDS["both"](models[1]), max_batch=3, capacity=40, tokenizer=Stutters(word))
    check_events(session, run(session, todo))
    for result, own in zip(session.results.values(), whole):
        text = tiny.Letters().decode(own.tokens)
        if word in own.tokens:
            at = own.tokens.index(word)
            assert (result.tokens, result.finished) == (own.tokens[: at + 1], "error")
            assert result.error == f"tokenizer: KeyError: {word}" and text.startswith(result.text.rstrip("\ufffd"))
        else:
            assert (result.tokens, result.finished, result.text) == (own.tokens, "length", text)
    assert 0 < sum(r.finished == "error" for r in session.results.values()) < 5


def test_a_cancelled_request_whose_text_cannot_be_read(models):
    session = Session(models[0], max_batch=1, capacity=40, tokenizer=tiny.Letters())
    index = session.submit(requests_for("both")[0])
    session.step()
    session.batch[0].stream.flush = lambda: 1 / 0
    assert session.cancel(index) and not session.batch
    [event] = session.step()
    assert (event.finished, event.error) == ("error", "tokenizer: ZeroDivisionError: division by zero")


def test_what_a_listener_raises_is_the_callers(models):
    """A listener's exception reaches the caller, and the drafter can be used by another run at once."""
    drafter = KINDS["both"](models[1])
    for error in (Boom, KeyboardInterrupt, torch.OutOfMemoryError):

        def listen(event, error=error):
            raise error("mine")

        with pytest.raises(error, match="mine") as kept:
            generate(models[0], requests_for("both"), drafter, on_event=listen)
        assert kept.traceback  # holds the frames of the interrupted run
    assert generate(models[0], requests_for("both")[:1], drafter).results[0].tokens == alone(models, "both")[0].tokens


def test_all_results_or_none(models):
    """check() raises if a request ended by an error."""
    todo = requests_for("plain")
    output = generate(models[0], todo)
    assert output.check() is output
    target = copy.copy(models[0])
    target.forward = lambda *args, **options: 1 / 0
    output = generate(target, todo)
    assert {result.finished for result in output.results} == {"error"}
    with pytest.raises(
        RuntimeError, match="Output.check: request 0 ended by an error after 0 tokens: .*ZeroDivisionError"
    ):
        output.check()


def test_halves():
    """Each request's step succeeds once, in its own slot, in order. A request that was alone from the start is tried
    twice."""
    tried, batch = [], Batch("abcdefg", first=3)

    def step(part):
        tried.append("".join(part))
        assert [batch[i - 3] for i in range(*part.slots.indices(99))] == [*part]
        if "c" in part and len(part) > 1:
            raise Boom
        return [*part]

    assert "".join(each_alone(step, lambda part: None, batch)) == "abcdefg"
    assert tried == ["abcdefg", "abc", "a", "bc", "b", "c", "defg"]
    attempts = iter([Boom(), None])

    def once(part):
        if error := next(attempts):
            raise error
        return [*part]

    assert each_alone(once, lambda part: None, Batch("a")) == ["a"]
