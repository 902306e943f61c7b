# SPDX-License-Identifier: Apache-2.0
"""Penalties of requests in the decode loop: they grow inside a draft, and the text is that of plain decoding under
them."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from support import plain_views, tiers, tiny
from support.drafters import EVERY, UNDER_VIEWS
from support.rule_laws import emitted

import specdec_kernels as sk
from specdec_kernels import testing
from specdec_kernels.decode import (
    BeamDrafter,
    Draft,
    HierarchicalDrafter,
    LookupThenModel,
    ModelDrafter,
    PromptLookupDrafter,
    Request,
    TokenCascade,
    TreeDrafter,
    adapt,
    beam_search,
    generate,
)
from specdec_kernels.decode.views import History
from specdec_kernels.reference.views import unseen, written_out

pytestmark = pytest.mark.usefixtures("one_thread")

ALL = dict(repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.5)


@pytest.fixture(scope="module")
def models():
    return tiny.served()["lean"]


def mixed(**parameters):
    """Return eight requests: some have all penalties, some have one, some have none."""
    some = [ALL, {}, dict(repetition_penalty=1.5), dict(frequency_penalty=0.7), dict(presence_penalty=-0.8)]
    return [replace(r, max_new_tokens=14, **some[i % 5], **parameters) for i, r in enumerate(tiny.requests())]


@pytest.mark.parametrize("kind", UNDER_VIEWS)
def test_greedy_is_plain_decoding_under_penalties(models, kind):
    """Requests end, move in the caches and make room for others, beside requests without penalties. Kills: counts that
    are not updated, the prompt counted by frequency or presence, the list of another request."""
    hf, target, draft = models
    todo = mixed()
    output = generate(target, todo, EVERY[kind](draft), max_batch=3).check()
    expected = [plain_views.greedy(hf, r) for r in todo]
    assert [r.tokens for r in output.results] == expected
    plain = [tiny.greedy(hf, r.prompt, 14) for r in todo]
    assert [a == b for a, b in zip(expected, plain)] == [i % 5 == 1 for i in range(8)]


def committed_counts(verify, op):
    """Return a verification in which every row has the penalties of the step's first row, which do not count the
    drafts."""

    def wrong(first, second, *more, **options):
        tree = op == "verify_tree"
        target = second if tree else first
        n, positions, V = target.logits.shape
        flat = target.logits.reshape(-1, V)
        numbers = [b for b in range(n) for _ in range(positions)]
        logits = written_out(flat, target, [()] * len(numbers), numbers, n).view(n, positions, V)
        target = unseen(target, logits=logits.float())
        return verify(first, target, *more, **options) if tree else verify(target, second, *more, **options)

    return wrong


@pytest.mark.parametrize("op, kind", [("verify_chain", "model"), ("verify_tree", "kseq"), ("verify_tree", "greedy")])
def test_committed_counts_on_every_row_are_found_out(models, monkeypatch, op, kind):
    """Control of the test above: the penalties of a step's first row on all its rows change the text."""
    hf, target, draft = models
    monkeypatch.setattr(sk, op, committed_counts(getattr(sk, op), op))
    monkeypatch.setattr("specdec_kernels.decode.session.row_of_each", lambda ids: None)  # rows stay [B, G+1, V]
    todo = [replace(r, **ALL) for r in tiny.requests(4)]
    output = generate(target, todo, EVERY[kind](draft), max_batch=3)
    assert [r.tokens for r in output.results] != [plain_views.greedy(hf, r) for r in todo]


PROMPT, V = [1], 4  # a prompt of one token needs no prompt pass
GROWING = dict(repetition_penalty=1.6, frequency_penalty=0.7, presence_penalty=0.9)


def three_tokens(drafter, temperature=1.0, n=tiers.draws(8000), spread=0.15, rule="exact", alpha=None, verify="token"):
    """Return the tokens of n requests that differ in their seed only, the statistics, and the distributions of the
    target and the draft under the request's penalties."""
    target, draft = tiny.llama(3, V, spread), tiny.llama(4, V, spread)
    request = Request(PROMPT, 3, temperature=temperature, rule=rule, alpha=alpha, **GROWING)
    todo = [replace(request, seed=i) for i in range(n)]
    output = generate(adapt(target), todo, drafter(adapt(draft)), max_batch=2000, verify=verify).check()
    assert output.stats.status == 0
    tokens = np.array([r.tokens for r in output.results])
    return tokens, output.stats, *(plain_views.laws(model, request) for model in (target, draft))


CHAINS = {
    "token": (lambda d: ModelDrafter(d, 2), {}),
    "block": (lambda d: ModelDrafter(d, 2), {"verify": "block"}),
    "peaked": (lambda d: ModelDrafter(d, 2), {"temperature": 0.4, "spread": 0.2}),
    "both": (lambda d: LookupThenModel(PromptLookupDrafter(2, 2, 1), ModelDrafter(d, 2)), {}),
    "hierarchical": (lambda d: HierarchicalDrafter(d, PromptLookupDrafter(2, 2, 1), 2), {}),
}
TREES = {
    "kseq": (lambda d: TreeDrafter(d, "kseq", 2, 2), {}),
    "recursive": (lambda d: TreeDrafter(d, "recursive", 3, 2), {"temperature": 0.4, "spread": 0.2}),
    "traversal": (lambda d: TreeDrafter(d, "traversal", shape=(2, 2)), {}),
    "target_only": (lambda d: TreeDrafter(d, "target_only", shape=(2, 1)), {}),
}
THOROUGH = "both", "traversal", "target_only"
CASES = CHAINS | TREES


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.thorough if kind in THOROUGH else ()) for kind in CASES]
)
@pytest.mark.slow
def test_joint_law_of_three_tokens(kind):
    """The joint distribution under penalties that grow inside the draft. With 8,000 draws (half as many below the tier
    `all`) a bias of total variation 0.062, spread over the cells, is found 99 times in 100."""
    drafter, options = CASES[kind]
    tokens, stats, p, _ = three_tokens(drafter, **options)
    check = testing.check_tokens(tokens, testing.enumerate_law(p, 3))
    assert check.passed, check
    few = 10 if tiers.TIER == "all" else 8  # fewer draws fill fewer cells
    assert check.cells > (few if "spread" in options else 20) and check.detects < tiers.shift(0.062), check
    assert 0.15 < stats.alpha < 0.98, stats


@pytest.mark.parametrize("op, kind", [("verify_chain", "token"), ("verify_tree", "kseq")])
@pytest.mark.slow
def test_joint_law_finds_committed_counts(monkeypatch, op, kind):
    """Control of the test above."""
    monkeypatch.setattr(sk, op, committed_counts(getattr(sk, op), op))
    monkeypatch.setattr("specdec_kernels.decode.session.row_of_each", lambda ids: None)
    tokens, _, p, _ = three_tokens(CASES[kind][0], n=4000)
    assert not testing.check_tokens(tokens, testing.enumerate_law(p, 3)).passed


@pytest.mark.parametrize("rule, alpha, verify", [("chow", 0.5, "token"), ("token_v3", 0.5, "block")])
@pytest.mark.slow
def test_joint_law_under_a_rule(rule, alpha, verify):
    """A rule mixes the two models' distributions, both under penalties, also at the token after the last draft."""
    tokens, _, p, q = three_tokens(lambda d: ModelDrafter(d, 2), rule=rule, alpha=alpha, verify=verify)
    law = testing.enumerate_law(lambda t: emitted(rule, p(t), q(t), (alpha,)), 3)
    check = testing.check_tokens(tokens, law)
    assert check.passed and check.cells > 20 and check.detects < tiers.shift(0.062), check
    assert not testing.check_tokens(tokens, testing.enumerate_law(p, 3)).passed  # differs from the target's


@pytest.mark.parametrize("kind", ["model", "lookup", "both", "hierarchical", "kseq", "traversal", "target_only"])
@pytest.mark.slow
def test_a_request_alone_and_beside_others(models, kind):
    """Each request draws the same tokens alone. One without penalties draws the same tokens in a batch where no request
    has any."""
    _, target, draft = models
    todo = mixed(temperature=0.8)
    together = generate(target, todo, EVERY[kind](draft), max_batch=5).results
    alone = [generate(target, [r], EVERY[kind](draft)).results[0] for r in todo]
    assert [r.tokens for r in together] == [r.tokens for r in alone]
    off = [replace(r, repetition_penalty=1.0, frequency_penalty=0.0, presence_penalty=0.0) for r in todo]
    free = generate(target, off, EVERY[kind](draft), max_batch=5).results
    assert [a.tokens == b.tokens for a, b in zip(together, free)] == [i % 5 == 1 for i in range(8)]


def test_drafts_are_drawn_under_penalties(models, monkeypatch):
    """More drafts are accepted than from a draft model that ignores the penalties."""
    _, target, draft = models
    todo = [replace(r, max_new_tokens=40, **GROWING) for r in tiny.requests(temperature=0.7)]
    aware = generate(target, todo, ModelDrafter(draft, 3)).stats.alpha
    honest = ModelDrafter.propose

    def unaware(self, batch):
        batch.views.after_chain = lambda drawn: {}
        draft = honest(self, batch)
        return None if draft is None else replace(draft, viewed=False)

    monkeypatch.setattr(ModelDrafter, "propose", unaware)
    assert aware > generate(target, todo, ModelDrafter(draft, 3)).stats.alpha + 0.1


def test_without_penalties_the_ops_get_none(models, monkeypatch):
    """No list of used tokens is made, and no rows passed to an op have penalties."""
    _, target, draft = models
    seen = []
    for op in ("sample", "row_stats", "verify_chain", "verify_tree", "row_topw"):
        honest = getattr(sk, op)
        monkeypatch.setattr(sk, op, lambda *a, f=honest, **k: (seen.extend(a), f(*a, **k))[1])
    monkeypatch.setattr(History, "__init__", lambda self, prompt: pytest.fail("a list was made"))
    for kind in ("model", "kseq", "traversal", "target_only"):
        generate(target, tiny.requests(2, temperature=1.0), EVERY[kind](draft))
    rows = [x for x in seen if isinstance(x, sk.Rows)]
    assert len(rows) > 20 and all(x.penalties is None for x in rows)
    with pytest.raises(pytest.fail.Exception, match="a list was made"):
        generate(target, [Request([1], 3, presence_penalty=1.0)], ModelDrafter(draft))


@pytest.mark.parametrize("vocab", [20, 40])
def test_a_draft_vocabulary_of_another_size(models, vocab):
    """The lists hold ids that a narrower draft model lacks. A wider one drafts ids that the target lacks."""
    hf, target, _ = models
    draft, todo = adapt(tiny.llama(6, vocab)), [replace(r, logit_bias={30: 1.0}) for r in mixed()]
    expected = [plain_views.greedy(hf, r) for r in todo]
    for kind in ("model", "target_only", "kseq"):
        assert [r.tokens for r in generate(target, todo, EVERY[kind](draft), max_batch=3).results] == expected


def test_lists_grow_as_history_makes_them():
    rng = random.Random(3)
    prompt, output = [rng.randrange(50) for _ in range(20)], []
    history = History(prompt)
    for _ in range(30):
        output += [rng.randrange(60) for _ in range(rng.randrange(5))]
        history.update(prompt + output)
        ids, counts = sk.history([prompt], [output], len(history.ids))
        assert (list(history.ids), list(history.counts)) == (ids[0].tolist(), counts[0].tolist())


class Unaware(Draft):
    takes_views = False


def test_what_cannot_serve_penalties_says_so(models):
    """If a proposal does not take views, requests with penalties end with an error, and no others."""
    _, target, draft = models
    request = Request([1, 2], 5, presence_penalty=0.5)
    for call, text in [
        (lambda: generate(target, [replace(request, rule="chow")], TokenCascade(draft)), "TokenCascade"),
        (lambda: beam_search(target, [request], 2), "beam_search"),
        (lambda: beam_search(target, [request], 2, BeamDrafter(draft)), "beam_search"),
    ]:
        with pytest.raises(ValueError, match=f"{text}: presence_penalty must be off, request 0 has 0.5"):
            call()
    lookup = PromptLookupDrafter(3)
    lookup.propose = lambda batch: Unaware(torch.full((len(batch), 1), 3))
    lone = replace(request, presence_penalty=0.0)
    results = generate(target, [lone, request, lone], lookup).results
    assert [r.finished for r in results] == ["length", "error", "length"]
    wanted = "a proposal must set takes_views to serve presence_penalty (request 1), got Unaware"
    assert wanted in results[1].error
