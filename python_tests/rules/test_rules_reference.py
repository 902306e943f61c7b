# SPDX-License-Identifier: Apache-2.0
"""Output distributions of the rules, enumerated exactly: chain_law against the distribution that defines each rule, for
every rule, and for block verification with every rule that it takes."""

import importlib
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from support.rule_laws import ALPHAS, LAWS, ROW_RULES, emitted, rows_of
from support.tree_laws import EXACT, GOLDEN, TELLING, random_rows

from specdec_kernels import testing
from specdec_kernels.reference.chain import Chain
from specdec_kernels.reference.chain_law import chain_law, walked_chain_law
from specdec_kernels.reference.rules import DEFER, Mix, Pair, cascades, lossy, resolved
from specdec_kernels.reference.rules.lossy import inverse_beta
from specdec_kernels.reference.rules.one_step import one_step, pi_of
from specdec_kernels.rules import RULES, TABLE

block = importlib.import_module("specdec_kernels.reference.block")
COMBINATIONS = [("token", rule) for rule in ALPHAS] + [("block", rule) for rule in LAWS]


def distance(law, other):
    return max(abs(law.get(t, 0.0) - other.get(t, 0.0)) for t in {*law, *other})


def test_the_table_is_the_one_agreed_on():
    assert [*RULES.values()] == list(range(17)) and [*RULES] == [
        "exact",
        "chow",
        "chow_log",
        "diff",
        "diff_log",
        "opt",
        "opt_log",
        "token_v1",
        "token_v2",
        "token_v3",
        "lenience",
        "lossy",
        "ensemble",
        "typical",
        "relaxed",
        "synthetic",
        "thresholds",
    ]
    assert [rule for rule in TABLE if TABLE[rule].defines_distribution] == [rule for rule in RULES if rule in LAWS]


# ---- golden numbers -------------------------------------------------------------------------------------------------

GOLDEN_LAWS = [
    ("chow", 0.4, "p"),
    ("chow", 0.6, "q"),
    ("chow_log", 0.9, "p"),
    ("diff", 0.1, "q"),
    ("opt", 0.3, "q"),
    ("token_v1", 0.25, (0.1, 0.56, 0.34)),
    ("token_v2", 0.25, (0.35, 0.59, 0.06)),
    ("token_v3", 0.5, (0.35, 0.59, 0.06)),
    ("lossy", 0.2, (0.375, 0.375, 0.25)),
]
TELLING_LAWS = [  # by hand: p = (.2, .4, .4), q = (.5, .35, .15); H(p) = 1.05492, H(q) = .99858, TV = .3
    ("chow", 0.4, "p"),
    ("chow", 0.5, "q"),
    ("chow_log", 0.99, "p"),
    ("chow_log", 1.0, "q"),
    ("diff", 0.0, "q"),
    ("opt", 0.0, "q"),
    ("diff_log", 0.0, "q"),
    ("opt_log", 0.0, "q"),
    ("token_v1", 0.1, (0.53, 0.41, 0.06)),  # keeps q >= .3: eta = .15
    ("token_v2", 0.1, (0.1, 0.55, 0.35)),
    ("token_v3", 0.4, (0.1, 0.55, 0.35)),  # keep p >= .3, p >= .24: eta = .5
    ("token_v3", 0.6, "q"),
    ("lossy", 0.2, (0.25, 0.375, 0.375)),  # R = .5 - .25; with t = 1 / beta, .8 t - .5 = R at t = .9375
    ("ensemble", 0.25, (0.425, 0.3625, 0.2125)),
    ("lenience", 0.8, (0.25, 0.35 + 0.25 / 6, 0.15 + 1.25 / 6)),  # kept (.25, .35, .15), residual (0, 1, 5) / 6
    ("typical", (0.3, 1.0), (0.1, 0.55, 0.35)),
    ("typical", (0.09, 0.3), "q"),  # .3 exp(-H) = .104
    ("relaxed", (1, 0.0), (0.1, 0.55, 0.35)),
    ("relaxed", (3, 0.15), (0.1, 0.55, 0.35)),
    ("relaxed", (3, 0.25), "q"),  # both entries of .4 are the largest
    ("synthetic", 0.7, (0.41, 0.365, 0.225)),
    ("thresholds", (0.4, 0.8), (0.125, 0.5375, 0.3375)),  # 0 accepted with .2 / .8, else (0, .5, .5)
    ("thresholds", (1.0, 1.0), "p"),
]


@pytest.mark.parametrize(
    "pair, rule, alpha, want", [(GOLDEN, *x) for x in GOLDEN_LAWS] + [(TELLING, *x) for x in TELLING_LAWS]
)
def test_golden_laws(pair, rule, alpha, want):
    p, q = pair
    want = {"p": p, "q": q}.get(want, want) if isinstance(want, str) else want
    step = one_step(p, q, *resolved("test", "token", rule, alpha))
    assert step.emitted == pytest.approx(want, abs=EXACT)
    assert step.pi is None or step.pi == pytest.approx(want, abs=EXACT)


def test_lenience_golden():
    p, q = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.2, 0.3, 0.4])
    for l, b, want in ((0.8, 0.675, (0.34375, 0.28125, 0.25, 0.125)), (0.5, 0.8, (0.25, 0.25, 0.3, 0.2))):
        step = one_step(p, q, "lenience", (l,))
        assert step.emitted == pytest.approx(want, abs=EXACT) and q @ step.accept == pytest.approx(b, abs=EXACT)


def test_beta_golden():
    assert 1 / inverse_beta(*map(np.array, GOLDEN), 0.2)[0] == pytest.approx(4 / 3, abs=EXACT)


# ---- distributions of chains ----------------------------------------------------------------------------------------

SIZES = {"random": (4, 2), "tempered": (3, 3), "zeros": (3, 2), "equal": (3, 2), "one-hot": (3, 2)}  # V, gamma


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("method, rule", COMBINATIONS)
def test_chain_law_is_the_product_of_the_rules_law(method, rule, kind):
    """Every emitted token follows the distribution that defines the rule, after any prefix. So does the bonus token if
    the draft's row for it is given."""
    V, gamma = SIZES[kind]
    p, q, p1, q1 = rows_of(kind, V)
    wide = (lambda row: lambda t: np.eye(V)[row(t)]) if kind == "one-hot" else lambda row: row
    for end_row in (False, True) if rule in LAWS and kind == "tempered" else (False,):
        law = chain_law(p, q, gamma, method=method, rule=rule, alpha=ALPHAS[rule], p1=p1, q1=q1, end_row=end_row)

        def pi(t, end_row=end_row):
            return (
                emitted(rule, p(t), wide(q)(t), ALPHAS[rule], p1(t), wide(q1)(t)) if len(t) < gamma or end_row else p(t)
            )

        assert sum(law.values()) == pytest.approx(1, abs=EXACT)
        assert distance(testing.complete_law(law, pi, gamma + 1), testing.enumerate_law(pi, gamma + 1)) < EXACT


@pytest.mark.parametrize("kind", ["tempered", "zeros", "one-hot"])
@pytest.mark.parametrize("method, rule", COMBINATIONS)
def test_the_walk_has_the_law(method, rule, kind):
    """The decisions of reference.verify_chain, enumerated, give the same distribution as the closed form."""
    p, q, p1, q1 = rows_of(kind, 3)
    for gamma, end_row in ((1, False), (2, True)):
        args = dict(method=method, rule=rule, alpha=ALPHAS[rule], p1=p1, q1=q1, end_row=end_row and kind != "one-hot")
        assert distance(chain_law(p, q, gamma, **args), walked_chain_law(p, q, gamma, **args)) < EXACT


@pytest.mark.parametrize("method", ["token", "block"])
@pytest.mark.parametrize("vocab", [2, 6])
def test_drafts_narrower_and_wider(method, vocab):
    """A narrower draft has q = 0 for missing ids. Ids beyond the target's vocabulary are never emitted, and the exact
    rule stays exact."""
    p, q = random_rows(1, 4), random_rows(2, vocab)
    law = chain_law(p, q, 2, method=method)
    assert distance(testing.complete_law(law, p, 3), testing.enumerate_law(p, 3)) < EXACT
    for rule in LAWS:
        args = dict(method=method, rule=rule, alpha=ALPHAS[rule])
        law = chain_law(p, q, 2, **args)
        assert distance(law, walked_chain_law(p, q, 2, **args)) < EXACT
        assert sum(law.values()) == pytest.approx(1, abs=EXACT) and max(map(max, law)) < 4
        if vocab < 4:
            pi = lambda t: emitted(rule, p(t), np.pad(q(t), (0, 2)), ALPHAS[rule]) if len(t) < 2 else p(t)
            assert distance(testing.complete_law(law, pi, 3), testing.enumerate_law(pi, 3)) < EXACT


def test_the_parameters_are_telling():
    """On random and tempered rows, every rule but the exact one changes the distribution. Every row rule keeps q at
    some rows and defers to p at others."""
    for rule in [*ALPHAS][1:]:
        kinds = set()
        for kind in ("random", "tempered"):
            p, q, p1, q1 = rows_of(kind, SIZES[kind][0])
            for t in itertools.chain([()], itertools.product(range(SIZES[kind][0]), repeat=1)):
                law = emitted(rule, p(t), q(t), ALPHAS[rule], p1(t), q1(t))
                kinds |= {"p" if np.allclose(law, p(t)) else "q" if np.allclose(law, q(t)) else "mixed"}
        assert kinds >= ({"p", "q"} if rule in ROW_RULES else {"mixed"}), (rule, kinds)


@pytest.mark.parametrize("name", TABLE)
def test_which_rules_keep_the_target_s_law(name):
    """A rule gives the target distribution at the parameters keeps_target_at of the table. Its defaults give it only if
    they are these parameters. Some rows have a one-hot q."""
    V = 4
    rows = [[row(()) for row in rows_of(kind, V)[:2]] for kind in ("random", "zeros")]
    rows += [(rows[0][0], np.eye(V)[v]) for v in range(V)]

    def farthest(alpha):
        return max(np.abs(emitted(name, p, q, alpha) - p).max() for p, q in rows)

    at, defaults = TABLE[name].keeps_target_at, tuple(parameter.default for parameter in TABLE[name].parameters)
    assert at is None or farthest(at) < EXACT
    assert name == "exact" or farthest(ALPHAS[name]) > 1e-3
    assert (farthest(defaults) < EXACT) == (defaults == at) and (at is None or defaults == at)
    if TABLE[name].exact_at is not None:
        assert (TABLE[name].exact_at,) == at


def test_unscaled_rows_decide_and_sampled_rows_mix():
    """Confidences come from the unscaled rows p1 and q1. TV and eta come from the sampled rows p and q. Exchanging them
    gives another distribution."""
    p, q = TELLING
    p1, q1 = np.array([0.6, 0.3, 0.1]), np.array([0.3, 0.36, 0.34])
    assert (
        pi_of(p, q, "diff", (0.1,)).tolist() == q.tolist()
        and pi_of(p, q, "diff", (0.1,), p1, q1).tolist() == p.tolist()
    )
    # alpha = .9: opt keeps q iff max q1 = .36 >= .6 - alpha TV, so iff alpha TV >= .24. TV(p, q) = .3 is large enough,
    # TV(p, near) = .03 is not.
    near = p + 0.1 * (q - p)
    assert (
        pi_of(p, near, "opt", (0.9,), p1, q1).tolist() == p.tolist()
        and pi_of(p, q, "opt", (0.9,), p1, q1).tolist() == q.tolist()
    )
    # token_v2 with p1 keeps id 0 alone; eta = q(1) + q(2), from the sampled q
    assert pi_of(p, q, "token_v2", (0.2,), p1, q1) == pytest.approx([0.5 + 0.1, 0.2, 0.2], abs=EXACT)
    # token_v1 keeps ids with q1 >= .35, which is id 1; eta = .65, from the sampled q
    assert pi_of(p, q, "token_v1", (0.25,), p1, q1) == pytest.approx([0.13, 0.35 + 0.26, 0.26], abs=EXACT)


# ---- mutants --------------------------------------------------------------------------------------------------------


def walked_error(method, rule):
    """Return the distance between the walk and the product of the rule's distributions, on tempered rows with the bonus
    row."""
    p, q, p1, q1 = rows_of("tempered", 3)
    law = walked_chain_law(p, q, 2, method=method, rule=rule, alpha=ALPHAS[rule], p1=p1, q1=q1, end_row=True)
    pi = lambda t: emitted(rule, p(t), q(t), ALPHAS[rule], p1(t), q1(t))
    return distance(testing.complete_law(law, pi, 3), testing.enumerate_law(pi, 3))


def replace(owner, name, make):
    return lambda patch: patch.setattr(
        owner, name, make(getattr(owner, name, None)), raising=False
    )  # a builtin has no entry in the module yet


MUTANTS = {
    "confidences of the sampled rows": (
        "token",
        "opt",
        replace(Pair, "unscaled", lambda _: property(lambda self: (self.target, self.draft))),
    ),
    "the residual of p": (
        "token",
        "token_v2",
        replace(Mix, "leftover", lambda f: lambda self, pair, r=1.0: f(DEFER, pair, r)),
    ),
    "the residual not of r pi": (
        "block",
        "exact",
        replace(Mix, "leftover", lambda f: lambda self, pair, r=1.0: f(self, pair)),
    ),
    "the bonus from p": (
        "token",
        "token_v3",
        replace(Chain, "end", lambda _: lambda self: self.draw(self.p(len(self.tokens)))),
    ),
    "r not capped at 1": ("block", "exact", replace(block, "np", lambda _: SimpleNamespace(minimum=lambda a, b: b))),
    "h_i = r_i": ("block", "lossy", replace(block, "h_at", lambda _: lambda i, last, rows, r: r[i])),
    "q of the row before": (
        "token",
        "ensemble",
        replace(Chain, "pair", lambda f: lambda self, i, d, p: f(self, max(i - 1, 0), d, p)),
    ),
    "beta = 1": ("token", "lossy", replace(lossy, "inverse_beta", lambda _: lambda p, q, alpha: (1.0, 1.0, 1.0))),
    "the mass that is kept for eta": (
        "token",
        "token_v1",
        replace(cascades, "token_rule", lambda f: lambda *a: f(*a)._replace(a=1 - f(*a).a)),
    ),
    "tau = the smallest i": (
        "block",
        "exact",
        replace(block, "next", lambda _: lambda found, default: min(found, default=default)),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(monkeypatch, name):
    method, rule, mutate = MUTANTS[name]
    assert walked_error(method, rule) < EXACT
    mutate(monkeypatch)
    assert walked_error(method, rule) > 1e-3
