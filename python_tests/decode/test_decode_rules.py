# SPDX-License-Identifier: Apache-2.0
"""Rules in the decode loop, and plain cascades, on tiny models: joint distributions, mixed batches, counts, errors."""

from dataclasses import replace

import numpy as np
import pytest
from support import tiers, tiny
from support.rule_laws import ALPHAS, emitted

import specdec_kernels as sk
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

pytestmark = pytest.mark.usefixtures("one_thread")
PROMPT, V = [1], 4
# With these parameters a deferral rule defers at some prefixes of this pair, and not at others
# (test_the_parameters_are_telling).
PARAMETERS = {
    **ALPHAS,
    "chow": (0.55,),
    "chow_log": (1.22,),
    "diff": (0.06,),
    "opt": (0.3,),
    "opt_log": (0.38,),
    "token_v3": (0.5,),
}
PLAIN = ("chow", "chow_log", "diff", "opt_log")


@pytest.fixture(scope="module")
def pair():
    """Return (target, draft, p, q): the models and their distributions after a prefix."""
    target, draft = tiny.llama(3, V, 0.15), tiny.llama(4, V, 0.15)
    return adapt(target), adapt(draft), tiny.laws(target, PROMPT), tiny.laws(draft, PROMPT)


def pi(pair, rule):
    """Return pi, a function from a prefix to the next token's distribution by the rule's definition."""
    return lambda prefix: emitted(rule, pair[2](prefix), pair[3](prefix), PARAMETERS[rule])


def three_tokens(pair, rule, drafter, n=tiers.draws(4000), **options):
    alpha = PARAMETERS[rule] or None
    todo = [Request(PROMPT, max_new_tokens=3, temperature=1.0, rule=rule, alpha=alpha, seed=i) for i in range(n)]
    output = generate(pair[0], todo, drafter, max_batch=2000, **options).check()
    assert output.stats.status == 0
    return np.array([r.tokens for r in output.results]), output.stats


def test_the_parameters_are_telling(pair):
    prefixes = [(), *((a,) for a in range(V)), *((a, b) for a in range(V) for b in range(V))]
    for rule in ("chow", "chow_log", "diff", "opt", "opt_log"):
        kept = [np.array_equal(pi(pair, rule)(t), pair[3](t)) for t in prefixes]
        assert 3 <= sum(kept) <= len(kept) - 3, rule
    p, q = (testing.enumerate_law(law, 3) for law in pair[2:])
    assert sum(abs(p[t] - q[t]) for t in p) / 2 > 0.2


CASES = [("chow", "token"), ("token_v3", "block")]
MORE = [("diff", "block"), ("opt_log", "token"), ("ensemble", "token")]
CASES += [pytest.param(*case, marks=pytest.mark.thorough) for case in MORE]


@pytest.mark.parametrize("rule, verify", CASES)
@pytest.mark.slow
def test_joint_law_under_a_rule(pair, rule, verify):
    """Three tokens from the loop follow the product of pi, including the token after the last draft and the request's
    last token."""
    tokens, stats = three_tokens(pair, rule, ModelDrafter(pair[1], 2), verify=verify)
    check = testing.check_tokens(tokens, testing.enumerate_law(pi(pair, rule), 3))
    assert check.passed and check.cells > 20 and check.detects < tiers.shift(0.09), check
    assert stats.tokens_per_call > 1.2
    if rule in ("chow", "token_v3"):
        assert not testing.check_tokens(tokens, testing.enumerate_law(pair[2], 3)).passed  # differs from the target's


def test_joint_law_finds_a_bonus_from_p(pair, monkeypatch):
    """Control: without the draft's row after its last draft, the token there follows the target, and the test above
    fails."""
    honest = ModelDrafter.propose

    def short(self, batch):
        draft = honest(self, batch)
        g = draft.tokens.shape[1]
        rows = sk.Rows(draft.rows.logits[:, :g], stats=draft.rows.stats[:, :g])
        return replace(draft, rows=rows) if g else None

    monkeypatch.setattr(ModelDrafter, "propose", short)
    tokens, _ = three_tokens(pair, "chow", ModelDrafter(pair[1], 2))
    assert not testing.check_tokens(tokens, testing.enumerate_law(pi(pair, "chow"), 3)).passed


TREES = [
    ("kseq", "chow"),
    ("recursive", "token_v3"),
    ("recursive_without_replacement", "opt_log"),
    ("traversal", "ensemble"),
]


@pytest.mark.parametrize("method, rule", TREES)
@pytest.mark.slow
def test_joint_law_of_trees_under_a_rule(pair, method, rule):
    """Drafts end one token before the request does, so its last token comes after a leaf and follows the target. The
    others follow pi."""
    tokens, stats = three_tokens(pair, rule, TreeDrafter(pair[1], method, drafts=2, depth=2))
    law = testing.enumerate_law(lambda t: pi(pair, rule)(t) if len(t) < 2 else pair[2](t), 3)
    check = testing.check_tokens(tokens, law)
    assert check.passed and check.cells > 20 and check.detects < tiers.shift(0.09), check
    assert stats.tokens_per_call > 1.2
    if rule in ("chow", "token_v3"):
        assert not testing.check_tokens(tokens, testing.enumerate_law(pair[2], 3)).passed
        assert not testing.check_tokens(tokens, testing.enumerate_law(pi(pair, rule), 3)).passed


def test_thresholds_of_a_tree():
    """At (1, 1) the text is that of the exact rule. With lower thresholds more is accepted."""
    _, target, draft = tiny.served()["lean"]
    tree = lambda: TreeDrafter(draft, "target_only", drafts=3, depth=3)

    def decoded(**rule):
        todo = [Request(r.prompt, 12, temperature=0.8, seed=i, **rule) for i, r in enumerate(tiny.requests())]
        return generate(target, todo, tree(), max_batch=4)

    exact, strict = decoded(), decoded(rule="thresholds", alpha=(1.0, 1.0))
    assert [r.tokens for r in exact.results] == [r.tokens for r in strict.results]
    assert decoded(rule="thresholds", alpha=(0.2, 0.5)).stats.tokens_per_call > 1.1 * exact.stats.tokens_per_call


@pytest.mark.parametrize("rule", PLAIN)
@pytest.mark.thorough
def test_joint_law_of_a_plain_cascade(pair, rule):
    """A plain cascade has the same distribution without speculation. If the draft's row alone decides, there is one
    target call per deferral, otherwise one per token."""
    tokens, stats = three_tokens(pair, rule, TokenCascade(pair[1]))
    law = testing.enumerate_law(pi(pair, rule), 3)
    assert testing.check_tokens(tokens, law).passed
    if rule in ("chow", "chow_log"):
        defers = {t[:i]: not np.array_equal(pi(pair, rule)(t[:i]), pair[3](t[:i])) for t in law for i in range(3)}
        assert stats.rows == sum(defers[tuple(t[:i])] for t in tokens.tolist() for i in range(3))
        assert 0 < stats.rows < stats.new_tokens == stats.rows + stats.accepted
    else:
        assert stats.rows == stats.new_tokens and stats.drafted == 0


def test_plain_cascade_at_its_ends():
    """Without any deferral the output is the draft model's, with no target call. With deferral everywhere it is plain
    decoding, greedy here."""
    hf, target, draft = tiny.served()["lean"]
    other = tiny.nearby(tiny.llama(0))
    todo = tiny.requests(3)
    for alpha, model in ((1.0, other), (0.0, hf)):
        asked = [
            Request(r.prompt, r.max_new_tokens, rule="chow", alpha=alpha, eos=(tiny.greedy(model, r.prompt, 9)[8],))
            for r in todo
        ]
        output = generate(target, asked, TokenCascade(draft), max_batch=2)
        for request, result in zip(asked, output.results):
            whole = tiny.greedy(model, request.prompt, 9)
            end = whole.index(request.eos[0]) + 1
            assert result.tokens == whole[:end] and result.finished == "eos"
            assert result.stats.rows == result.stats.target_calls == (0 if alpha else end)
        assert output.stats.rows == (0 if alpha else output.stats.new_tokens) and (output.stats.target_calls > 0) == (
            alpha == 0
        )


def mixed(rules):
    """Return eight requests with one rule each, greedy and sampled."""
    alphas = dict(
        chow=0.8, chow_log=1.0, diff=0.1, opt=0.5, token_v3=0.8, typical=(0.2, 0.5), ensemble=0.5, lenience=0.5
    )
    return [
        Request(r.prompt, r.max_new_tokens, [0.7, 1.0, 0.0][i % 3], seed=i, rule=rule, alpha=alphas.get(rule))
        for i, (r, rule) in enumerate(zip(tiny.requests(), rules))
    ]


@pytest.mark.parametrize("kind", ["model", "lookup", "plain", "tree"])
@pytest.mark.slow
def test_a_request_alone_and_beside_other_rules(kind):
    """Each request of a mixed batch gets the same tokens and counts as alone."""
    _, target, draft = tiny.served()["lean"]
    model = lambda: ModelDrafter(draft, 3)
    rules, drafter = {
        "model": (["exact", "chow", "typical", "opt", "exact", "token_v3", "ensemble", "diff"], model),
        "lookup": (
            ["exact", "typical", "lenience", "synthetic"] * 2,
            lambda: LookupThenModel(PromptLookupDrafter(5), model()),
        ),
        "plain": (["chow", "diff", "chow_log", "opt"] * 2, lambda: TokenCascade(draft)),
        "tree": (
            ["exact", "chow", "token_v3", "opt", "exact", "ensemble", "diff", "chow_log"],
            lambda: TreeDrafter(draft, "traversal", 3, 3),
        ),
    }[kind]
    todo = mixed(rules)
    alone = [generate(target, [r], drafter()).results[0] for r in todo]
    together = generate(target, todo, drafter(), max_batch=5).results
    assert [r.tokens for r in together] == [r.tokens for r in alone]
    assert [(r.stats.rows, r.stats.accepted) for r in together] == [(r.stats.rows, r.stats.accepted) for r in alone]


def test_exact_requests_pay_nothing(monkeypatch):
    """Without a request under a rule, no rule is passed to the op, and the draft model makes no extra pass."""
    _, target, draft = tiny.served()["lean"]
    seen, verify = [], sk.verify_chain
    monkeypatch.setattr(sk, "verify_chain", lambda *a, **k: seen.append((a, k)) or verify(*a, **k))
    prompt = tiny.requests()[7].prompt

    def rows_more(rule):
        """Return how many rows the draft model computes beyond one per token, in the first step."""
        seen.clear()
        generate(target, [Request(prompt, 4, rule=rule)], ModelDrafter(draft, 3))
        (_, tokens, rows), _ = seen[0]
        return rows.logits.shape[1] - tokens.shape[1]

    assert rows_more("exact") == 0 and not any("rule" in options or "alpha" in options for _, options in seen)
    assert rows_more("typical") == 0 and seen[0][1]["rule"].tolist() == [sk.RULES["typical"]]
    assert seen[0][1]["alpha"].tolist() == [pytest.approx([0.09, 0.3])]  # the rule's defaults
    assert rows_more("chow") == 1


def test_errors():
    _, target, draft = tiny.served()["lean"]
    model, lookup, tree = ModelDrafter(draft, 3), PromptLookupDrafter(3), TreeDrafter(draft)

    def decode(drafter, verify="token", rule="chow", tokens=9):
        return generate(
            target, [Request([1, 2], 9), Request([1, 2], tokens, rule=rule)][rule != "exact" :], drafter, verify=verify
        )

    for make, message in [
        (lambda: Request([1], rule="chov"), "Request: rule must be one of exact, chow, .*got 'chov'"),
        (lambda: Request([1], rule="diff", alpha=1.5), r"Request: alpha of rule 'diff' must be in \[0, 1\], got 1.5"),
        (lambda: Request([1], alpha=0.5), "Request: rule 'exact' takes no alpha"),
        (lambda: decode(None), "rule must be one of exact with plain decoding, request 0 has 'chow'"),
        (
            lambda: decode(tree, rule="typical"),
            "rule must be one of exact, chow, .*ensemble with TreeDrafter, request 0 has 'typical'",
        ),
        (
            lambda: decode(TreeDrafter(draft, "target_only")),
            "rule must be one of exact, thresholds with TreeDrafter, request 0 has 'chow'",
        ),
        (
            lambda: decode(TreeDrafter(draft, lookup=lookup)),
            "rule must be one of exact with TreeDrafter, request 0 has 'chow'",
        ),
        (lambda: decode(lookup), "with PromptLookupDrafter, request 0 has 'chow'"),
        (lambda: decode(LookupThenModel(lookup, model)), "with LookupThenModel, request 0 has 'chow'"),
        (
            lambda: decode(TokenCascade(draft), rule="token_v3"),
            "rule must be one of chow, chow_log, diff.* with TokenCascade",
        ),
        (lambda: decode(TokenCascade(draft), tokens=300), "max_new_tokens must be <= longest=256, request 0 has 300"),
        (
            lambda: decode(TokenCascade(adapt(tiny.llama(6, 40)))),
            "TokenCascade: the draft model must have at most the target's 32 ids, got 40",
        ),
        (lambda: decode(model, "tree"), "verify must be 'token', 'block' or 'race', got 'tree'"),
        (lambda: decode(tree, "block", "exact"), "verify must be 'token' with TreeDrafter, got 'block'"),
        (
            lambda: decode(model, "block", "typical"),
            "rule 'typical' defines no distribution, so verify must be 'token', got 'block' .request 0.",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            make()
