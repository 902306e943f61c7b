# SPDX-License-Identifier: Apache-2.0
"""`Request.logprobs`, and which tokens were drafted: each value is computed again from the model's row for the text
before the token, in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support import plain_views, tiny
from support.drafters import EVERY, UNDER_VIEWS
from support.grammar import Grammar

import specdec_kernels as sk
from specdec_kernels.decode import (
    Logprobs,
    ModelDrafter,
    PromptLookupDrafter,
    Request,
    Session,
    TokenCascade,
    TreeDrafter,
    beam_search,
    generate,
)
from specdec_kernels.decode.proposal import Draft, TreeDraft

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def models():
    return tiny.served()["lean"]


def mixed(temperature=0.8):
    """Return eight requests: with raw, processed or no logprobs, and with or without views (penalties, a bias, bad
    words, a grammar) and end tokens."""
    kinds = [dict(logprobs=3), dict(logprobs=2, logprobs_mode="processed"), {}, dict(logprobs=0)]
    views = [
        {},
        dict(presence_penalty=0.5, bad_words=((3,), (4, 5)), logit_bias={7: 1.0}, min_tokens=6, eos=(0, 1, 2, 3)),
        dict(allowed=Grammar(32), eos=(0,), repetition_penalty=1.3),
    ]
    return [
        replace(r, max_new_tokens=14, temperature=temperature, **kinds[i % 4], **views[i % 3])
        for i, r in enumerate(tiny.requests())
    ]


def expected(z, temperature):
    """Return the logprobs of a row of logits, float64; at temperature 0 all mass is at its argmax."""
    if temperature == 0:
        return np.where(np.arange(len(z)) == z.argmax(), 0.0, -np.inf)
    return torch.log_softmax(torch.from_numpy(z).double() / temperature, -1).numpy()


def close(a, b):
    return a == b or abs(a - b) < 2e-4


def check(hf, request, result):
    """Check a result's logprobs against rows that are computed from the texts. Ranks and ids are those of the logits;
    they may differ where two logits nearly tie."""
    assert len(result.drafted) == len(result.tokens)
    if request.logprobs is None:
        assert result.logprobs is None
        return
    assert len(result.logprobs) == len(result.tokens)
    processed = request.logprobs_mode == "processed"
    for i, (token, found) in enumerate(zip(result.tokens, result.logprobs)):
        read = plain_views.row if processed else plain_views.raw
        z = read(hf, request, result.tokens[:i])
        law = expected(z, request.temperature if processed else 1.0)
        assert isinstance(found, Logprobs) and type(found.rank) is int and type(found.logprob) is float
        assert close(found.logprob, law[token]), (i, found, law[token])
        assert abs(found.rank - (z >= z[token]).sum()) <= (np.abs(z - z[token]) < 1e-4).sum() - 1
        assert len(found.top) == request.logprobs
        for (v, logprob), best in zip(found.top, np.sort(z)[::-1]):
            assert close(logprob, law[v]) and (z[v] == best or abs(z[v] - best) < 1e-4)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", UNDER_VIEWS)
def test_logprobs_are_those_of_the_texts(models, kind, temperature):
    """Kills: the row of another position, branch or request; the views of another position; the wrong mode; an error in
    the step's one transfer to the host."""
    if kind == "greedy" and temperature:
        pytest.skip("takes temperature 0 only")
    hf, target, draft = models
    todo = mixed(temperature)
    options = dict(verify="race") if kind == "race" else {}
    output = generate(target, todo, EVERY[kind](draft), max_batch=3, **options).check()
    for request, result in zip(todo, output.results):
        check(hf, request, result)
    assert sum(sum(r.drafted) for r in output.results) == output.stats.accepted
    assert kind in ("plain", "lookup") or output.stats.accepted > 5
    # the tokens do not depend on what is reported
    bare = generate(
        target, [replace(r, logprobs=None) for r in todo], EVERY[kind](draft), max_batch=3, **options
    ).results
    adaptive = kind.startswith("adaptive") and temperature
    assert adaptive or [r.tokens for r in bare] == [r.tokens for r in output.results]


def test_filters_count_in_processed_rows(models):
    """Ids below the cutoff have -inf, and the others are normalised among themselves."""
    hf, target, draft = models
    todo = [
        replace(r, max_new_tokens=10, temperature=1.3, top_k=3, logprobs=5, logprobs_mode="processed")
        for r in tiny.requests(4)
    ]
    for request, result in zip(todo, generate(target, todo, ModelDrafter(draft, 3)).check().results):
        for i, found in enumerate(result.logprobs):
            z = plain_views.row(hf, request, result.tokens[:i])
            best = np.sort(z)[::-1][:3].astype(np.float64) / 1.3
            assert np.allclose([x for _, x in found.top[:3]], best - np.logaddexp.reduce(best), atol=2e-4)
            assert [x for _, x in found.top[3:]] == [-np.inf] * 2 and found.rank <= 3


@pytest.mark.parametrize("kind", ["plain", "model", "traversal"])
def test_events_have_them_too(models, kind):
    """Events add up to the result. The drafted tokens of a step come first, and at most one other follows them."""
    _, target, draft = models
    session, seen = Session(target, EVERY[kind](draft), max_batch=3, capacity=64), {}
    for request in mixed():
        session.submit(request)
    for event in session.events():
        assert event.drafted == sorted(event.drafted, reverse=True) and event.drafted.count(False) <= 1
        assert len(event.drafted) == len(event.tokens)
        tokens, drafted, logprobs = seen.setdefault(event.index, ([], [], []))
        tokens += event.tokens
        drafted += event.drafted
        logprobs += event.logprobs or []
        assert (event.logprobs is None) == (session.results[event.index].logprobs is None)
    for index, (tokens, drafted, logprobs) in seen.items():
        result = session.results[index]
        assert (tokens, drafted, logprobs) == (result.tokens, result.drafted, result.logprobs or [])


def test_only_requests_that_want_them_pay(models, monkeypatch):
    """top_logprobs reads only the rows of requests with logprobs, and is not called for other steps."""
    _, target, draft = models
    seen, honest = [], sk.top_logprobs
    monkeypatch.setattr(sk, "top_logprobs", lambda rows, *a: (seen.append(len(rows.logits)), honest(rows, *a))[1])
    todo = [Request([1, 2], 6, logprobs=1 if i == 2 else None) for i in range(5)]
    output = generate(target, todo, ModelDrafter(draft, 2))
    assert sum(seen) == len(output.results[2].tokens) == 6
    seen.clear()
    generate(target, [replace(r, logprobs=None) for r in todo], ModelDrafter(draft, 2))
    assert not seen


@pytest.mark.parametrize("kind, of", [("model", Draft), ("traversal", TreeDraft)])
def test_the_row_before_is_found(models, monkeypatch, kind, of):
    """Control: the row of the position before fails the check."""
    hf, target, draft = models
    honest = of.emitting
    monkeypatch.setattr(of, "emitting", lambda self, verified: honest(self, verified).roll(1, 1))
    results = generate(target, todo := mixed(), EVERY[kind](draft), max_batch=3).results
    with pytest.raises(AssertionError):
        for request, result in zip(todo, results):
            check(hf, request, result)


class Unseen(Draft):
    """A proposal that emits without the target."""

    needs_target = property(lambda self: [False] * len(self.tokens))

    def verify(self, logits, batch, method, row):
        n = len(batch)
        zeros = torch.zeros(n, 1)
        return sk.VerifyChainOutput(zeros.long(), zeros[:, 0].int(), zeros, zeros[:, 0].int())


class Alone(PromptLookupDrafter):
    def propose(self, batch):
        return Unseen(Draft.nothing(batch).tokens)


def test_a_step_without_the_target(models):
    """The request that wants logprobs ends with an error, the other does not."""
    _, target, _ = models
    results = generate(target, [Request([1, 2], 3), Request([1, 2], 3, logprobs=1)], Alone(3)).results
    assert [r.finished for r in results] == ["length", "error"] and results[0].tokens == [0, 0, 0]
    assert "logprobs need the target's rows, Unseen did not ask for them" in results[1].error


def test_what_is_refused(models):
    _, target, draft = models
    request = Request([1, 2], 5, logprobs=2, rule="chow", alpha=0.5)
    with pytest.raises(ValueError, match="TokenCascade: logprobs must be None, since .* request 0 has 2"):
        generate(target, [request], TokenCascade(draft))
    plain = replace(request, rule="exact", alpha=None)
    with pytest.raises(ValueError, match="beam_search: logprobs must be None, request 0 has 2"):
        beam_search(target, [plain], 2)
    with pytest.raises(ValueError, match="logprobs must be at most V=32, request 0 has 33"):
        generate(target, [replace(plain, logprobs=33)])
    whole = generate(target, [replace(plain, logprobs=32)], TreeDrafter(draft, "kseq", 2, 2)).check().results[0]
    assert all(sorted(v for v, _ in x.top) == [*range(32)] for x in whole.logprobs)
