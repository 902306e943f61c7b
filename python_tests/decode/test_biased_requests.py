# SPDX-License-Identifier: Apache-2.0
"""`logit_bias` and `min_tokens` of requests in the decode loop: the text is that of plain decoding under them, also
where min_tokens is reached inside a draft, and forbidden ids are never emitted."""

import math
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
    ModelDrafter,
    PromptLookupDrafter,
    Request,
    TokenCascade,
    TreeDrafter,
    adapt,
    beam_search,
    generate,
)
from specdec_kernels.decode.views import Views
from specdec_kernels.registry import ONE_HOT_RULES, REJECT_FORBIDDEN, RULES

pytestmark = pytest.mark.usefixtures("one_thread")

NO = -math.inf


@pytest.fixture(scope="module")
def models():
    return tiny.served()["lean"]


def mixed(**parameters):
    """Return eight requests in turn with a bias, with nothing, with min_tokens, and with both and a penalty."""
    some = [
        dict(logit_bias={3: 6.0, 7: NO, 0: -1.0}),
        {},
        dict(min_tokens=8, eos=(0, 1, 2, 3, 4, 5, 6, 7)),
        dict(min_tokens=5, eos=(5, 8, 13, 21), logit_bias={5: 4.0, 30: NO}, presence_penalty=0.7),
    ]
    return [replace(r, max_new_tokens=14, **some[i % 4], **parameters) for i, r in enumerate(tiny.requests())]


@pytest.mark.parametrize("kind", UNDER_VIEWS)
def test_greedy_is_plain_decoding(models, kind):
    """Slots are freed, moved and reused. Kills: the bias of another request, of another position, and an end token that
    stays forbidden."""
    hf, target, draft = models
    todo = mixed()
    output = generate(target, todo, EVERY[kind](draft), max_batch=3).check()
    expected = [plain_views.greedy(hf, r) for r in todo]
    assert [r.tokens for r in output.results] == expected
    free = [plain_views.greedy(hf, replace(r, logit_bias=None, min_tokens=0)) for r in todo]
    assert [a == b for a, b in zip(expected, free)] == [i % 4 == 1 for i in range(8)]
    assert {r.finished for r in output.results} == {"eos", "length"}


PROMPT, V = [1], 4
BIASED = dict(eos=(2,), min_tokens=2, logit_bias={0: 0.8, 2: 1.5}, frequency_penalty=0.5)


def decoded(drafter, n=tiers.draws(8000), temperature=1.0, verify="token", **parameters):
    """Return the texts of n requests that differ in their seed only, the statistics, the request, and the two models'
    distributions as the request sees them."""
    target, draft = tiny.llama(3, V, 0.15), tiny.llama(4, V, 0.15)
    request = Request(PROMPT, 4, temperature=temperature, **parameters)
    todo = [replace(request, seed=i) for i in range(n)]
    output = generate(adapt(target), todo, drafter(adapt(draft)), max_batch=2000, verify=verify).check()
    assert output.stats.status == 0
    laws = (plain_views.laws(model, request) for model in (target, draft))
    return [r.tokens for r in output.results], output.stats, request, *laws


CASES = {
    "token": (lambda d: ModelDrafter(d, 3), {}),
    "block": (lambda d: ModelDrafter(d, 3), dict(verify="block")),
    "peaked": (lambda d: ModelDrafter(d, 3), dict(temperature=0.5, logit_bias={0: 0.8})),
    "lookup": (lambda d: PromptLookupDrafter(3, 2, 1), {}),
    "kseq": (lambda d: TreeDrafter(d, "kseq", 2, 3), {}),
    "recursive": (lambda d: TreeDrafter(d, "recursive", 2, 3), {}),
    "traversal": (lambda d: TreeDrafter(d, "traversal", shape=(2, 2, 1)), {}),
    "target_only": (lambda d: TreeDrafter(d, "target_only", shape=(2, 1, 1)), {}),
}
THOROUGH = "lookup", "recursive", "target_only"


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.thorough if kind in THOROUGH else ()) for kind in CASES]
)
@pytest.mark.slow
def test_joint_law_with_the_boundary_inside_a_draft(kind):
    """The third token may end the text and the two before it may not: all are drafted in one step. With 8,000 draws a
    bias of total variation 0.065 is found 99 times in 100."""
    drafter, options = CASES[kind]
    tokens, stats, request, p, _ = decoded(drafter, **BIASED | options)
    law = plain_views.texts(p, request)
    assert min(map(len, tokens)) == 3 == min(map(len, law)) and 0.2 < sum(m for t, m in law.items() if t[2] == 2) < 0.8
    check = testing.check_tokens(tokens, law)
    assert check.passed and check.cells > 12 and check.detects < tiers.shift(0.065), check
    assert 0.1 < stats.alpha < 0.98, stats


@pytest.mark.parametrize("wrong", ["the first position's", "always late"])
@pytest.mark.slow
def test_joint_law_finds_a_bias_of_another_position(monkeypatch, wrong):
    """Control of the test above: one bias list for all positions of a draft is found."""
    honest = Views._bias
    by = (lambda depth: depth * 0) if wrong == "the first position's" else (lambda depth: depth * 0 + 9)
    monkeypatch.setattr(Views, "_bias", lambda self, depth, windows: honest(self, lambda: by(depth()), windows))
    tokens, _, request, p, _ = decoded(CASES["token"][0], 1000, **BIASED)  # the error is large, so few draws find it
    assert not testing.check_tokens(tokens, plain_views.texts(p, request)).passed


@pytest.mark.parametrize("rule, alpha, verify", [("chow", 0.5, "token"), ("token_v3", 0.5, "block")])
@pytest.mark.slow
def test_joint_law_under_a_rule(rule, alpha, verify):
    """The rule mixes both models' distributions under the bias, and emits no forbidden id."""
    views = dict(logit_bias={0: 0.8, 3: NO}, presence_penalty=0.5)
    tokens, _, request, p, q = decoded(lambda d: ModelDrafter(d, 3), rule=rule, alpha=alpha, verify=verify, **views)
    law = plain_views.texts(lambda t: emitted(rule, p(t), q(t), (alpha,)), request)
    check = testing.check_tokens(tokens, law)
    assert check.passed and check.cells > 20 and not (np.array(tokens) == 3).any(), check
    assert not testing.check_tokens(tokens, plain_views.texts(p, request)).passed  # differs from the target's


@pytest.mark.parametrize("kind", UNDER_VIEWS)
def test_forbidden_ids_are_never_emitted(models, kind):
    """Half of all ids are forbidden, at temperature 2 (a greedy tree's is 0), beside requests that may emit them."""
    _, target, draft = models
    half = dict.fromkeys(range(1, 32, 2), NO)
    todo = [
        replace(r, max_new_tokens=12, temperature=0.0 if kind == "greedy" else 2.0, logit_bias=half if i % 2 else None)
        for i, r in enumerate(tiny.requests())
    ]
    results = generate(target, todo, EVERY[kind](draft), max_batch=3).check().results
    odd = [{t % 2 for t in r.tokens} for r in results]
    assert odd[1::2] == [{0}] * 4 and {1} <= set().union(*odd[::2])


@pytest.mark.parametrize("rule", sorted(set(REJECT_FORBIDDEN) & set(ONE_HOT_RULES)))
def test_rules_that_reject_forbidden_drafts(models, rule):
    """Looked-up text is full of forbidden ids, and none of it is accepted."""
    hf, target, _ = models
    prompt = tiny.greedy(hf, [1, 2], 30)
    banned = dict.fromkeys(set(prompt[:15]), NO)
    todo = [Request(prompt, 12, temperature=1.5, rule=rule, logit_bias=banned, seed=i) for i in range(6)]
    output = generate(target, todo, PromptLookupDrafter(4, 2, 1)).check()
    assert output.stats.drafted > 5 and not banned.keys() & {t for r in output.results for t in r.tokens}


LOOSEST = {  # the parameters at which a rule accepts most
    **dict.fromkeys(("chow", "diff", "token_v1", "token_v2", "token_v3", "synthetic"), (1.0,)),
    **dict.fromkeys(("chow_log", "diff_log", "opt", "opt_log"), (50.0,)),
    **dict(exact=(), ensemble=(0.0,), lossy=(0.99,), lenience=(0.001,), typical=(0.0, 0.0)),
    **dict(relaxed=(99.0, 1.0), thresholds=(0.001, 0.001)),
}


@pytest.mark.parametrize("rule", RULES)
def test_which_rules_may_accept_a_forbidden_draft(rule):
    """verify_chain rejects all of 200 forbidden drafts that q favours if REJECT_FORBIDDEN lists the rule, and accepts
    some otherwise."""
    p, q = torch.zeros(200, 2, 6), torch.tensor([3.0, 0, 0, 0, 0, 0]).expand(200, 1, 6)
    bias = sk.Bias(torch.tensor([[0]]), torch.tensor([[NO]]), torch.zeros(200, dtype=torch.int64))
    rng = dict(seed=torch.arange(200), offset=torch.zeros(200, dtype=torch.int64))
    alpha = LOOSEST[rule][0] if len(LOOSEST[rule]) == 1 else LOOSEST[rule] or None
    drafts = torch.zeros(200, 1, dtype=torch.int64)
    out = sk.verify_chain(sk.Rows(p, bias=bias), drafts, q, rule=rule, alpha=alpha, **rng)
    assert bool((out.num_accepted == 0).all()) == (rule in REJECT_FORBIDDEN)


class Unseeing(ModelDrafter):
    draws_viewed = False


def test_what_is_refused(models):
    _, target, draft = models
    request = Request([1, 2], 5, logit_bias={7: NO}, temperature=1.0)
    rules = "rule must be one of exact, lenience, lossy, typical, relaxed, thresholds where "
    other = "forbids ids, since other rules may emit those that {} drafts, request 0 has "
    early = replace(request, logit_bias=None, min_tokens=2, eos=(3,))

    def decode(request, drafter, **options):
        return generate(target, [replace(request, **options)], drafter)

    for call, text in [
        (
            lambda: decode(request, ModelDrafter(draft), rule="synthetic", alpha=0.5),
            rules + "logit_bias " + other.format("ModelDrafter") + "'synthetic'",
        ),
        (
            lambda: decode(early, PromptLookupDrafter(), rule="synthetic", alpha=0.5),
            rules + "min_tokens " + other.format("PromptLookupDrafter") + "'synthetic'",
        ),
        (
            lambda: decode(request, Unseeing(draft), rule="chow", alpha=0.5),
            rules + "logit_bias " + other.format("Unseeing") + "'chow'",
        ),
        (
            lambda: decode(request, None, logit_bias={40: 1.0}),
            r"logit_bias ids must lie in \[0, V=32\), request 0 has 40",
        ),
        (
            lambda: decode(request, TokenCascade(draft), rule="chow", logit_bias={7: 1.0}),
            "TokenCascade: logit_bias must be off, request 0",
        ),
        (lambda: beam_search(target, [replace(early, temperature=0.0)], 2), "beam_search: min_tokens must be off"),
    ]:
        with pytest.raises(ValueError, match=text):
            call()
    for served in (dict(rule="chow", alpha=0.5), dict(rule="typical")):
        decode(request, ModelDrafter(draft), **served).check()
    decode(request, Unseeing(draft), rule="chow", alpha=0.5, logit_bias={7: -5.0}).check()
    decode(early, Unseeing(draft), rule="chow", alpha=0.5, eos=()).check()  # nothing is forbidden


def test_a_row_with_nothing_left_ends_the_request(models):
    _, target, draft = models
    todo = [Request([1, 2], 5), Request([1, 2], 5, logit_bias=dict.fromkeys(range(32), NO))]
    results = generate(target, todo, ModelDrafter(draft)).results
    assert [r.finished for r in results] == ["length", "error"] and results[1].tokens == []


def test_biases_are_gone_once_no_request_needs_them(models, monkeypatch):
    """After min_tokens the ops get no bias."""
    _, target, draft = models
    seen, honest = [], sk.verify_chain
    monkeypatch.setattr(sk, "verify_chain", lambda t, *a, **k: (seen.append(t.bias is not None), honest(t, *a, **k))[1])
    generate(target, [Request([1, 2], 20, min_tokens=6, eos=(31,))], ModelDrafter(draft, 2))
    assert seen[0] and not seen[-1] and seen == sorted(seen, reverse=True)
