# SPDX-License-Identifier: Apache-2.0
"""Hierarchical drafting on tiny models: a middle model drafts for the target, and a small model for the middle one.

Tests greedy output, joint distributions, the rows that the middle model drew from, and that each random number is used
once.
"""

from collections import Counter

import numpy as np
import pytest
import torch
from support import tiers, tiny
from support.rule_laws import ALPHAS, emitted

import specdec_kernels as sk
from specdec_kernels import decode, testing
from specdec_kernels.decode import (
    HierarchicalDrafter,
    LookupThenModel,
    ModelDrafter,
    PromptLookupDrafter,
    Request,
    TokenCascade,
    TreeDrafter,
    adapt,
    generate,
)
from specdec_kernels.decode.drafters import hierarchical_drafter
from specdec_kernels.decode.sequence import Batch, Sequence

pytestmark = pytest.mark.usefixtures("one_thread")


def lookup():
    return PromptLookupDrafter(4, 3, 1)


DRAFTERS = {  # name -> function of a middle model m and a small model s
    "model": lambda m, s: HierarchicalDrafter(m, ModelDrafter(s, 2), 4),
    "block": lambda m, s: HierarchicalDrafter(m, ModelDrafter(s, 2), 4, verify="block"),
    "lookup": lambda m, s: HierarchicalDrafter(m, lookup(), 5),
    "both": lambda m, s: HierarchicalDrafter(m, LookupThenModel(lookup(), ModelDrafter(s, 3)), 4),
    "auto": lambda m, s: HierarchicalDrafter(m, ModelDrafter(s, "auto"), "auto"),
    "looked up first": lambda m, s: LookupThenModel(lookup(), HierarchicalDrafter(m, ModelDrafter(s, 2), 4)),
    "three deep": lambda m, s: HierarchicalDrafter(m, HierarchicalDrafter(s, lookup(), 3), 5),
}


@pytest.fixture(scope="module")
def models():
    """Return (Hugging Face target, target, middle, small); each often accepts the drafts of the next."""
    target, middle, small = tiny.llama(0), tiny.nearby(tiny.llama(0), 0.02), tiny.nearby(tiny.llama(0), 0.05)
    return target, *map(adapt, (target, middle, small))


@pytest.mark.parametrize("kind", DRAFTERS)
def test_greedy_is_the_models_own(models, kind):
    """8 requests in batches of 3, so that slots are freed, moved and reused."""
    hf, target, middle, small = models
    todo = tiny.requests()
    output = generate(target, todo, DRAFTERS[kind](middle, small), max_batch=3)
    for request, result in zip(todo, output.results):
        assert result.tokens == tiny.greedy(hf, request.prompt, request.max_new_tokens)
    if kind == "model":
        assert 0.2 < output.stats.alpha < 0.95 and output.stats.tokens_per_call > 1.2


def joint(make, n, rule="exact", V=4, tokens=4, verify="token"):
    """Return the chi-square of the tokens of n requests that differ in their seed only, against exact enumeration."""
    target, middle, small = (tiny.llama(seed, V, 0.15) for seed in (3, 4, 5))
    prompt, alpha = [1], (None if rule == "exact" else ALPHAS[rule])
    todo = [Request(prompt, tokens, temperature=1.0, seed=i, rule=rule, alpha=alpha) for i in range(n)]
    output = generate(adapt(target), todo, make(adapt(middle), adapt(small)), max_batch=2000, verify=verify).check()
    p, q = tiny.laws(target, prompt), tiny.laws(middle, prompt)
    law = p if rule == "exact" else lambda prefix: emitted(rule, p(prefix), q(prefix), alpha)
    found = np.array([r.tokens for r in output.results])
    return testing.check_tokens(found, testing.enumerate_law(law, tokens)), output.stats


LAWS = [("model", "exact", "token"), ("block", "exact", "block")]
MORE = [("both", "exact", "token"), ("three deep", "exact", "block"), ("model", "token_v3", "token")]
LAWS += [pytest.param(*case, marks=pytest.mark.thorough) for case in MORE]


@pytest.mark.parametrize("kind, rule, verify", LAWS)
@pytest.mark.slow
def test_joint_law(kind, rule, verify):
    """Four tokens through the loop follow the target, or the distribution of the rule for target and middle model."""
    check, stats = joint(DRAFTERS[kind], tiers.draws(10_000), rule, verify=verify)
    assert check.passed, check
    assert check.cells > 60 and check.detects < tiers.shift(0.1), check
    assert 0.1 < stats.alpha < 0.95, stats


def test_joint_law_finds_rows_of_another_law(monkeypatch):
    """Control of the test above: rows flatter than the ones that the middle model drew from are found."""
    honest = hierarchical_drafter._stacked
    monkeypatch.setattr(hierarchical_drafter, "_stacked", lambda *a: honest(*a) / 2)
    assert not joint(DRAFTERS["model"], 4000)[0].passed


def a_batch(requests):
    return Batch(Sequence(i, r) for i, r in enumerate(requests))


def test_rows_are_the_middle_models(models):
    """Row j of a request's draft is the middle model's row after its text and j draft tokens, at temperature 1 and 0.
    So is the row for the bonus token if a rule needs it."""
    _, _, middle, small = models
    todo = tiny.requests(temperature=1.0)
    todo = [*todo[:4], *tiny.requests()[4:6], Request([3, 4], 1, rule="token_v3", alpha=0.5, temperature=1.0)]
    drafter, batch = DRAFTERS["both"](middle, small), a_batch(todo)
    drafter.begin(len(batch), 200)
    for slot, s in enumerate(batch):
        drafter.admit(slot, s)
    for _ in range(3):
        draft = drafter.propose(batch)
        assert draft.rows.logits.shape[1] == draft.tokens.shape[1] + 1  # token_v3 needs one row more
        assert (draft.tokens[:6] >= 0).all() and (draft.tokens[6] == -1).all()
        for s, row, tokens in zip(batch, draft.rows.logits, draft.tokens.tolist()):
            tokens = [t for t in tokens if t >= 0]
            ids = torch.tensor([s.tokens + tokens])
            own = middle.forward(ids, [0], middle.new_cache(1, 200))[0, len(s.tokens) - 1 :]
            assert torch.allclose(own, row[: len(tokens) + 1], atol=1e-4)
            if s.request.temperature == 0:
                assert tokens == own[:-1].argmax(-1).tolist()
        for s, tokens in zip(batch, draft.tokens.tolist()):  # accept some drafts, then another token
            s.tokens += [*tokens[: s.index % 4], 7] if s.index < 6 else []


@pytest.mark.parametrize("kind", ["model", "three deep"])
def test_no_random_number_serves_twice(models, kind, monkeypatch):
    """In a whole run no two calls of verify_chain use the same (seed, offset), and no two of sample the same (seed,
    offset, slot)."""
    _, target, middle, small = models
    used = Counter()

    def watch(name, slots):
        honest = getattr(sk, name)

        def call(*args, **options):
            keys = zip(options["seed"].tolist(), options["offset"].tolist())
            used.update((name, *key, options["slot"] if slots else 0) for key in keys)
            return honest(*args, **options)

        monkeypatch.setattr(sk, name, call)

    watch("sample", True)
    watch("verify_chain", False)
    todo = [Request([1, 2, 1], 24, temperature=1.0, seed=i) for i in range(6)]
    output = generate(target, todo, DRAFTERS[kind](middle, small), max_batch=4)
    calls = {name for name, *_ in used}
    assert calls == ({"sample", "verify_chain"} if kind == "model" else {"verify_chain"})
    assert len(used) > 2 * output.stats.rows and set(used.values()) == {1}, used.most_common(3)
    # The outer step's offset is the number of tokens, below 2^32. Inner steps add their number, from 1 on, above these
    # bits.
    assert {offset >> 32 for _, _, offset, _ in used} >= {0, 1, 2}


def test_errors(models):
    _, target, middle, small = models
    chains = "drafter must draft chains that can be verified, got"
    three = lookup()
    for _ in range(3):
        three = HierarchicalDrafter(middle, three)
    cases = [
        (lambda: HierarchicalDrafter(middle, three), "drafter must be at most 2 HierarchicalDrafters deep, got 3"),
        (lambda: HierarchicalDrafter(middle, TreeDrafter(small, "kseq")), f"{chains} TreeDrafter"),
        (lambda: HierarchicalDrafter(middle, TokenCascade(small)), f"{chains} TokenCascade"),
        (lambda: HierarchicalDrafter(middle, lookup(), 129), "gamma must be at most 128, got 129"),
        (lambda: HierarchicalDrafter(middle, lookup(), 0), 'gamma must be an integer >= 1 or "auto", got 0'),
        (lambda: HierarchicalDrafter(middle, lookup(), verify="x"), "verify must be 'token' or 'block', got 'x'"),
    ]
    for call, text in cases:
        with pytest.raises(ValueError, match=text):
            call()
    assert decode.HierarchicalDrafter is HierarchicalDrafter
