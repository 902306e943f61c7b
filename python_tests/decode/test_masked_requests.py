# SPDX-License-Identifier: Apache-2.0
"""`allowed` of requests in the decode loop: the text is that of plain decoding under the same masks, and the function
is never called with a text that it forbids."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support import plain_views, tiers, tiny
from support.drafters import EVERY, UNDER_VIEWS
from support.grammar import Grammar
from support.rule_laws import emitted

from specdec_kernels import testing
from specdec_kernels.decode import (
    LookupThenModel,
    ModelDrafter,
    PromptLookupDrafter,
    Request,
    TokenCascade,
    TreeDrafter,
    adapt,
    generate,
)
from specdec_kernels.decode.masks import Masks

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def models():
    return tiny.served()["lean"]


def mixed(**parameters):
    """Return eight requests. Two of three have a grammar; some of these also have a penalty, a bias and min_tokens."""
    more = [{}, {}, dict(presence_penalty=0.6, logit_bias={5: 2.0}, min_tokens=7)]
    return [
        replace(
            r, max_new_tokens=14, eos=(0,), allowed=None if i % 3 == 1 else Grammar(32), **more[i % 3], **parameters
        )
        for i, r in enumerate(tiny.requests())
    ]


@pytest.mark.parametrize("kind", UNDER_VIEWS)
def test_greedy_is_plain_decoding(models, kind):
    """Kills: one mask for all positions, a mask of another branch or request, a mask that the function has overwritten,
    a call with a forbidden draft."""
    hf, target, draft = models
    todo = mixed()
    output = generate(target, todo, EVERY[kind](draft), max_batch=3).check()
    expected = [plain_views.greedy(hf, r) for r in todo]
    assert [r.tokens for r in output.results] == expected
    free = [plain_views.greedy(hf, replace(r, allowed=None)) for r in todo]
    assert [a == b for a, b in zip(expected, free)] == [i % 3 == 1 for i in range(8)]
    assert kind in ("plain", "lookup") or output.stats.accepted > 10


PROMPT, V = [1], 4
CASES = {
    "token": (lambda d: ModelDrafter(d, 3), {}),
    "block": (lambda d: ModelDrafter(d, 3), dict(verify="block")),
    "both": (lambda d: LookupThenModel(PromptLookupDrafter(3, 2, 1), ModelDrafter(d, 3)), {}),
    "kseq": (lambda d: TreeDrafter(d, "kseq", 2, 3), {}),
    "recursive": (lambda d: TreeDrafter(d, "recursive", 2, 3), {}),
    "traversal": (lambda d: TreeDrafter(d, "traversal", shape=(2, 2, 1)), {}),
    "target_only": (lambda d: TreeDrafter(d, "target_only", shape=(2, 1, 1)), {}),
}
THOROUGH = "both", "recursive", "target_only"


def decoded(drafter, n=tiers.draws(8000), verify="token", least=2, **parameters):
    target, draft = tiny.llama(3, V, 0.15), tiny.llama(4, V, 0.15)
    grammar = Grammar(V, end=2, least=least)
    request = Request(PROMPT, 4, temperature=1.0, eos=(2,), allowed=grammar, **parameters)
    todo = [replace(request, seed=i) for i in range(n)]
    output = generate(adapt(target), todo, drafter(adapt(draft)), max_batch=2000, verify=verify)
    assert output.stats.status == 0
    laws = (plain_views.laws(model, request) for model in (target, draft))
    return [r.tokens for r in output.results], output.stats, request, *laws


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.thorough if kind in THOROUGH else ()) for kind in CASES]
)
@pytest.mark.slow
def test_joint_law(kind):
    """A mask for each position of a draft. With 8,000 draws (half as many below the tier `all`) a bias of total
    variation 0.065 is found 99 times in 100."""
    drafter, options = CASES[kind]
    tokens, stats, request, p, _ = decoded(drafter, **options)
    law = plain_views.texts(p, request)
    check = testing.check_tokens(tokens, law)
    assert check.passed and 8 < check.cells < 60 and check.detects < tiers.shift(0.065), check
    assert set(map(tuple, tokens)) <= set(law) and 0.1 < stats.alpha < 1, stats


@pytest.mark.slow
def test_joint_law_finds_the_first_mask_on_every_row(monkeypatch):
    """Control of the test above."""
    honest = Masks.after
    monkeypatch.setattr(Masks, "after", lambda self, paths: honest(self, [[()] * len(own) for own in paths]))
    monkeypatch.setattr(Grammar, "__call__", relaxed(Grammar.__call__))  # wrong masks let texts leave the language
    tokens, _, request, p, _ = decoded(CASES["token"][0], 4000)
    assert not testing.check_tokens(tokens, plain_views.texts(p, request)).passed


def relaxed(call):
    """Return a grammar's call that gives no mask where it would raise."""

    def asked(self, text):
        try:
            return call(self, text)
        except AssertionError:
            return None

    return asked


@pytest.mark.parametrize("rule, alpha, verify", [("chow", 0.5, "token"), ("token_v3", 0.5, "block")])
@pytest.mark.slow
def test_joint_law_under_a_rule(rule, alpha, verify):
    tokens, _, request, p, q = decoded(lambda d: ModelDrafter(d, 3), rule=rule, alpha=alpha, verify=verify)
    law = plain_views.texts(lambda t: emitted(rule, p(t), q(t), (alpha,)), request)
    check = testing.check_tokens(tokens, law)
    assert check.passed and set(map(tuple, tokens)) <= set(law), check
    assert not testing.check_tokens(tokens, plain_views.texts(p, request)).passed  # differs from the target's


@pytest.mark.parametrize("rule, alpha", [("exact", None), ("chow", 0.9), ("token_v2", 1.0), ("ensemble", 0.0)])
def test_a_draft_model_that_has_none_of_the_allowed_ids(models, rule, alpha):
    """The draft's row is empty where only ids that the draft lacks are allowed. Its draft is then rejected, whatever
    the rule, and no forbidden id is emitted."""
    hf, target, _ = models
    draft = adapt(tiny.llama(6, 16))

    def upper(text):
        """Allow only ids that the draft model lacks at every third token."""
        return torch.tensor([-65536 if len(text) % 3 == 2 else -1], dtype=torch.int32)

    todo = [Request(r.prompt, 12, 1.0, rule=rule, alpha=alpha, allowed=upper, seed=i)
            for i, r in enumerate(tiny.requests())]  # fmt: skip
    for drafter in (ModelDrafter(draft, 4), TreeDrafter(draft, "traversal", 2, 3)):
        results = generate(target, todo, drafter, max_batch=4).check().results
        assert all(t >= 16 for r in results for t in r.tokens[2::3])
        assert any(t < 16 for r in results for t in r.tokens)
    greedy = [replace(r, temperature=0.0, rule="exact", alpha=None) for r in todo]
    output = generate(target, greedy, ModelDrafter(draft, 4), max_batch=4)
    assert [r.tokens for r in output.results] == [plain_views.greedy(hf, r) for r in greedy]


def test_a_text_is_asked_about_once_in_a_step(models):
    """Drafting and verification share the masks, so the function is called at most once for each row of a step."""
    _, target, draft = models
    seen = []
    todo = [Request([1, 2], 12, allowed=lambda text: seen.append(tuple(text)), temperature=1.0)]
    stats = generate(target, todo, ModelDrafter(draft, 3)).stats
    assert stats.rows <= len(seen) <= 4 * stats.rows  # at most three drafts and the row after them


def test_what_a_function_may_not_return(models):
    """A request whose function returns something else, or raises, ends with an error. The others do not."""
    _, target, draft = models
    for returned, text in [
        ([1, 2], "TypeError: Request: allowed must return int32 words [W] or None, that of request 1 gave list"),
        (torch.ones(1), "that of request 1 gave torch.float32 [1]"),
        (torch.ones(1, 1, dtype=torch.int32), "that of request 1 gave torch.int32 [1, 1]"),
        (np.ones(2, np.int64), "that of request 1 gave torch.int64 [2]"),
        (torch.ones(0, dtype=torch.int32), "that of request 1 gave torch.int32 [0]"),
        (torch.zeros(1, dtype=torch.int32), "the target's row for the next token must be a distribution"),
    ]:
        todo = [Request([1, 2], 5), Request([1, 2], 5, allowed=lambda text, returned=returned: returned)]
        results = generate(target, todo, ModelDrafter(draft)).results
        assert [r.finished for r in results] == ["length", "error"] and text in results[1].error

    def fails(text):
        raise RuntimeError("no grammar")

    results = generate(target, [Request([1, 2], 5), Request([1, 2], 5, allowed=fails)], ModelDrafter(draft)).results
    assert [r.finished for r in results] == ["length", "error"] and "no grammar" in results[1].error
    words = np.full(1, -2, np.int32)  # numpy's arrays are taken
    [result] = generate(target, [Request([1, 2], 9, 1.0, allowed=lambda text: words)], ModelDrafter(draft)).results
    assert 0 not in result.tokens and result.finished == "length"


def test_what_is_refused(models):
    _, target, draft = models
    request = Request([1, 2], 5, allowed=Grammar(32), temperature=1.0)
    rules = "rule must be one of exact, lenience, lossy, typical, relaxed, thresholds where allowed forbids ids"
    with pytest.raises(ValueError, match=rules):
        generate(target, [replace(request, rule="synthetic", alpha=0.5)], ModelDrafter(draft))
    with pytest.raises(ValueError, match=rules):
        generate(target, [replace(request, rule="chow", alpha=0.5)], TokenCascade(draft))
