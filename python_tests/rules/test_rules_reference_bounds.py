# SPDX-License-Identifier: Apache-2.0
"""Guarantees of the rules on random rows: bounds, and parameters at which a rule is exact. Block verification accepts
at least as many tokens on average as the token method. Also deferral_rate and row_gap by hand."""

import numpy as np
import pytest
import torch
from support.rule_laws import ROW_RULES, TOKEN_RULES, assert_equal, chain_args, emitted
from support.tree_laws import EXACT, GOLDEN, TELLING, constant

from specdec_kernels import reference, theory
from specdec_kernels.reference.rules.lossy import inverse_beta
from specdec_kernels.reference.rules.one_step import one_step, pi_of
from specdec_kernels.rows import Rows


def pairs(n, seed=0):
    """Yield n triples (p, q, parameter): random rows of 2 to 12 ids, some with zeros, some equal."""
    rng = np.random.default_rng(seed)
    for i in range(n):
        V = int(rng.integers(2, 13))
        p, q = rng.dirichlet(np.full(V, rng.choice([0.1, 0.5, 3])), 2)
        if i % 5 == 0:
            p, q = (np.where(rng.random(V) < 0.4, 0.0, x) + 1e-300 * (np.arange(V) == i % V) for x in (p, q))
        elif i % 5 == 1:
            q = p.copy() if i % 2 else q
        yield p / p.sum(), q / q.sum(), float(rng.choice([0.05, 0.3, 0.7, 0.95]))


@pytest.mark.slow
def test_lenience_emits_at_most_p_over_l():
    """The emitted distribution is at most p / l, and at most p where p > q. The acceptance rate is sum min(q, p /
    l)."""
    beyond = 0
    for p, q, l in pairs(2000):
        step = one_step(p, q, "lenience", (l,))
        assert (step.emitted <= p / l + EXACT).all() and (step.emitted <= p + EXACT)[p > q].all()
        assert q @ step.accept == pytest.approx(np.minimum(q, p / l).sum(), abs=EXACT)
        beyond += (step.emitted > p + 0.01).any()
    assert beyond > 500  # the rule is lossy: it emits some token more often than p


@pytest.mark.slow
def test_lossy_beta_solves_its_equation():
    """sum pi = 1, beta >= 1, and the acceptance is min(1, p / ((1 - alpha) q)). Newton's method finds the same beta."""
    solved = 0
    for p, q, alpha in pairs(2000, 1):
        step, most = one_step(p, q, "lossy", (alpha,)), 1 / (1 - alpha)
        t, _, _ = inverse_beta(p, q, alpha)
        assert 0 <= t <= 1 and step.pi.sum() == pytest.approx(1, abs=EXACT)
        drawn = q > 0
        assert step.accept[drawn] == pytest.approx(np.minimum(1, most * p[drawn] / q[drawn]), abs=1e-9)
        if t > 0:
            R, x = np.maximum(q - most * p, 0).sum(), 1.0
            for _ in range(len(p) + 1):
                active = x * p > q
                x = (R + q[active].sum()) / p[active].sum()
            assert x == pytest.approx(t, rel=1e-9)
            solved += 1
    assert solved > 500


@pytest.mark.slow
def test_distance_from_the_target():
    """For the ensemble, TV(pi, p) = (1 - w) TV(p, q). For row rules and lossy, pi lies between p and q at every id.
    Token rules need not: they move mass to the tokens that they keep, even if p = q."""
    for p, q, w in pairs(400, 2):
        tv = np.maximum(p - q, 0).sum()
        assert np.maximum(p - pi_of(p, q, "ensemble", (w,)), 0).sum() == pytest.approx((1 - w) * tv, abs=EXACT)
        for rule in (*ROW_RULES, *TOKEN_RULES, "lossy"):
            pi = pi_of(p, q, rule, (w,))
            assert pi == pytest.approx(emitted(rule, p, q, (w,)), abs=EXACT) and pi.sum() == pytest.approx(
                1, abs=EXACT
            ), rule
            if rule not in TOKEN_RULES:
                assert (pi <= np.maximum(p, q) + EXACT).all() and (pi >= np.minimum(p, q) - EXACT).all()
    p = np.array([0.5, 0.3, 0.2])
    assert pi_of(p, p, "token_v2", (0.25,)) == pytest.approx(
        [0.6, 0.36, 0.04], abs=EXACT
    )  # ids 0 and 1 are kept, and each gains .2 p


def test_what_a_token_rule_keeps_is_always_accepted():
    for p, q, alpha in pairs(300, 3):
        for rule in TOKEN_RULES:
            step = one_step(p, q, rule, (alpha,))
            confidence, cut = (
                (q, p.max() - alpha)
                if rule == "token_v1"
                else (p, p.max() - alpha if rule == "token_v2" else (1 - alpha) * p.max())
            )
            assert (step.accept[(confidence >= cut) & (q > 0)] == 1).all()


# ---- ends of the parameters' ranges ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["token", "block"])
def test_the_exact_end_is_exact_bit_for_bit(method):
    args = chain_args(1)
    args["target"] = Rows(args["target"], temperature=torch.tensor([0.0, 0.7, 1.0]).repeat(40))
    want = reference.verify_chain(**args, method=method)
    assert 0.1 < (want.num_accepted == 3).double().mean() < 0.9
    for rule, alpha in (("lenience", 1.0), ("lossy", 0.0), ("ensemble", 1.0), ("chow", 0.0), ("chow_log", 0.0)):
        if method == "token" or rule != "lenience":
            assert_equal(reference.verify_chain(**args, method=method, rule=rule, alpha=alpha), want, rule)


def test_the_laws_at_both_ends_bit_for_bit():
    for p, q in [*[x[:2] for x in pairs(200, 4)], GOLDEN, TELLING]:
        for rule in ("chow", "chow_log"):
            assert q.max() == 1 or (pi_of(p, q, rule, (0.0,)) == p).all()
        for rule in ("chow", "diff", *TOKEN_RULES):
            assert (pi_of(p, q, rule, (1.0,)) == q).all()
        assert (pi_of(p, q, "ensemble", (0.0,)) == q).all()
        assert one_step(p, q, "thresholds", (1.0, 1.0)).emitted == pytest.approx(p, abs=EXACT)  # for any draft token


# ---- block against token --------------------------------------------------------------------------------------------


def expectations(p, q, gamma):
    """Return the expected numbers of tokens (token method, block method), each [N].

    p and q are lists: level i is [N, V^i, V], the rows after each prefix of i tokens. All N are computed at once.
    """
    N = p[0].shape[0]
    reach, mass, r = (np.ones((N, 1)) for _ in range(3))
    token, h = np.ones(N), []
    for i in range(gamma):
        if i > 0:
            s = np.maximum(r[..., None] * p[i] - q[i], 0).sum(-1)
            below = s + 1 - r
            h.append(np.where(below > 0, s / np.where(below > 0, below, 1), 1.0))
        reach = (reach[..., None] * np.minimum(p[i], q[i])).reshape(N, -1)
        mass = (mass[..., None] * q[i]).reshape(N, -1)
        r = np.minimum(1, r[..., None] * p[i] / q[i]).reshape(N, -1)
        token += reach.sum(-1)
    h.append(r)
    none, block = np.ones_like(mass), np.ones(N)
    for level in h[::-1]:
        none *= 1 - np.repeat(level, mass.shape[1] // level.shape[1], axis=1)
        block += (mass * (1 - none)).sum(-1)
    return token, block


def test_a_block_never_expects_less_than_its_tokens():
    """Over 10^4 sets of rows, with p and with an ensemble in its place, block verification emits at least as many
    tokens on average. theory.expected_chain_tokens agrees on the first eight sets of each size."""
    gains = []
    for V, gamma in ((3, 2), (2, 3)):
        rng = np.random.default_rng(V)
        p, q = ([rng.dirichlet(np.full(V, 0.6), (5000, V**i)) + 1e-9 for i in range(gamma)] for _ in range(2))
        p, q = ([x / x.sum(-1, keepdims=True) for x in rows] for rows in (p, q))
        for w in (1.0, 0.4):
            pi = [w * a + (1 - w) * b for a, b in zip(p, q)]
            token, block = expectations(pi, q, gamma)
            assert (block >= token - EXACT).all()
            gains.append((block - token).mean())
            for n in range(8):
                row = [
                    lambda t, rows=rows: (
                        rows[len(t)][n, sum(x * V ** (len(t) - 1 - j) for j, x in enumerate(t))]
                        if len(t) < gamma
                        else np.full(V, 1 / V)
                    )
                    for rows in (p, q)
                ]
                for method, want in (("token", token), ("block", block)):
                    got = theory.expected_chain_tokens(*row, gamma, method, "ensemble", w)
                    assert got == pytest.approx(want[n], abs=EXACT)
    assert min(gains) > 0.001, gains  # block verification gains: the bound does not hold only by equality


def test_expected_tokens_of_a_block_golden():
    """p = (1/3, 2/3), q = (2/3, 1/3), two draft tokens: block verification accepts 11/9, the token method 10/9 (Sun et
    al. 2024)."""
    p, q = constant(np.array([1, 2]) / 3), constant(np.array([2, 1]) / 3)
    assert theory.expected_chain_tokens(p, q, 2, "block") == pytest.approx(1 + 11 / 9, abs=EXACT)
    assert theory.expected_chain_tokens(p, q, 2, "token") == pytest.approx(1 + 10 / 9, abs=EXACT)
    with pytest.raises(ValueError, match="expected_chain_tokens: method must be 'token' or 'block', got 'tree'"):
        theory.expected_chain_tokens(p, q, 2, "tree")


def test_deferral_rate():
    p, q = (torch.from_numpy(np.stack(x)) for x in zip(GOLDEN, TELLING))
    assert theory.deferral_rate(p, q, "chow", 0.45).tolist() == [1, 1] and theory.deferral_rate(
        p, q, "diff", 0.0
    ).tolist() == [0, 0]
    assert theory.deferral_rate(p, q, "token_v2", 0.15).tolist() == pytest.approx(
        [0.8, 0.5]
    )  # keeps p >= .35; then p >= .25
    # the draft is narrower: ids 0 and 1 are kept
    assert theory.deferral_rate(p[0], q[0, :2] / 0.7, "token_v3", 0.5).item() == 0
    with pytest.raises(ValueError, match="deferral_rate: rule must be one of 'chow', .*, got 'lossy'"):
        theory.deferral_rate(p, q, "lossy", 0.1)
    with pytest.raises(ValueError, match=r"deferral_rate: alpha of rule chow must be in \[0, 1\], got 1.5"):
        theory.deferral_rate(p, q, "chow", 1.5)


def test_row_gap():
    """row_gap by hand: both pairs have TV .3. If the sides differ in width, the missing ids have no mass."""
    p, q = (torch.from_numpy(np.stack(x)) for x in zip(GOLDEN, TELLING))
    want = [
        [0.3, 0.7, 1.0296530140645737, 1.0296530140645737, 0.5, 0.5],
        [0.3, 0.7, 1.0549201679861442, 0.9985793315873921, 0.4, 0.5],
    ]
    assert reference.row_gap(Rows(p, kind="probs"), Rows(q, kind="probs")).numpy() == pytest.approx(
        np.array(want), abs=EXACT
    )
    assert reference.row_gap(p.log() + 3, q.log() - 2).numpy() == pytest.approx(
        np.array(want), abs=1e-7
    )  # adding a constant to logits changes nothing
    assert reference.row_gap(Rows(p, kind="probs"), Rows(q[:, :2], kind="probs"))[:, :2].numpy() == pytest.approx(
        np.array([[0.5, 0.5], [0.45, 0.55]]), abs=EXACT
    )
    bad = reference.row_gap(Rows(p, kind="probs"), Rows(torch.full_like(q, torch.nan), kind="probs"))
    assert bad[:, [0, 1, 3, 5]].isnan().all() and not bad[:, [2, 4]].isnan().any()
    stats = reference.row_stats(Rows(q.log(), temperature=0.5))
    assert reference.row_gap(p.log(), Rows(q.log(), stats=stats))[0, 5].item() == pytest.approx(25 / 38, abs=1e-7)
    with pytest.raises(ValueError, match="row_gap: p.kind must be 'logits' or 'probs', got 'x'"):
        reference.row_gap(Rows(p, kind="x"), Rows(q, kind="x"))
