# SPDX-License-Identifier: Apache-2.0
"""verify_chain with rules and with block verification, against the float64 reference and enumerated distributions. A
request's result must not depend on the rest of its batch."""

import numpy as np
import pytest
import torch
from support import backends, cases, checks, quadrature, rule_cases, rule_checks
from support.answers import verify_chain as reference_verify
from support.checks import ln
from support.plain import plain_sample
from support.rule_checks import AGREEMENT, PAIRS, measured_law

import specdec_kernels as sk
from specdec_kernels import testing
from specdec_kernels.reference.chain_law import chain_law
from specdec_kernels.reference.rules.one_step import one_step
from specdec_kernels.registry import SAMPLING
from specdec_kernels.rules import NAMES, TABLE

BF16 = torch.bfloat16


@pytest.mark.parametrize("method", ["token", "block"])
@pytest.mark.parametrize("name", AGREEMENT)
@pytest.mark.slow
def test_agrees_with_the_reference(verify, op_backend, name, method):
    rule_checks.agrees_with_the_reference(verify, op_backend, name, method)


@pytest.mark.parametrize("method", ["token", "block"])
def test_agrees_on_probability_rows(verify, op_backend, method):
    rule_checks.agrees_on_probability_rows(verify, op_backend, method)


@pytest.mark.parametrize("method", ["token", "block"])
@pytest.mark.slow_in_triton
def test_stats_handed_over(verify, op_backend, method):
    """With given stats of scaled, filtered rows, the rules still find the confidences of the unscaled rows."""
    args = rule_cases.chain(7, rule_cases.count(300, op_backend), 3, 1300, method, filtered=True, dtype=BF16)
    want = verify(**args)
    for prefix, logits in (("", "target_logits"), ("draft_", "draft_logits")):
        z = args[logits]
        params = {k: args.pop(prefix + k).repeat_interleave(z.shape[1]) for k in SAMPLING}
        stats = backends.run("row_stats", op_backend, z.reshape(-1, z.shape[-1]), **params).reshape(*z.shape[:2], 4)
        args["draft_stats" if prefix else "target_stats"] = stats
    got = verify(**args)
    assert torch.equal(got.tokens, want.tokens) and torch.equal(got.status, want.status)


PER_REQUEST = (*cases.PER_REQUEST, "rule", "alpha")


OFF = {
    side + name: value
    for side in ("", "draft_")
    for name, value in (("top_k", 0), ("top_p", 1.0), ("min_p", 0.0), ("top_n_sigma", 0.0))
}


@pytest.mark.parametrize("method", ["token", "block"])
@pytest.mark.slow_in_triton
def test_mixed_requests_are_alone(verify, op_backend, method):
    """Each request of a mixed batch gets the results that it gets alone, bit for bit.

    The batch of 64 mixes the method's rules, greedy and sampled, with and without filters. The call with one request
    gives the rule by name, and leaves out the filters that are off.
    """
    slow = op_backend == "triton-interpret"  # a filtered request takes half a second
    G, V = (2, 1031) if slow else (3, 3001)  # rows of several chunks, not aligned
    args = rule_cases.chain(
        41, 64, G, V, method, filtered=True, bonus_row=True, kinds=["near", "identical", "dirichlet"]
    )
    for name in OFF:
        args[name][torch.arange(64) % 3 >= (1 if slow else 2)] = OFF[name]
    args.pop("uniforms")
    args |= {"seed": torch.arange(64) * 7919 + 5, "offset": torch.arange(64) % 3 + 2**33}
    assert (
        len(args["rule"].unique()) == len(TABLE if method == "token" else rule_cases.LAWS)
        and 0 < (args["temperature"] == 0).sum() < 32
    )
    whole = verify(**args)
    assert len(whole.num_accepted.unique()) == G + 1
    for b in range(64):
        one = {
            name: x[b : b + 1] if name in PER_REQUEST else x
            for name, x in args.items()
            if name not in OFF or x[b] != OFF[name]
        }
        name, alpha = NAMES[int(one.pop("rule"))], one.pop("alpha")[0].tolist()
        alpha = tuple(alpha[: len(TABLE[name].parameters)]) or None
        alone = verify(**one, rule=name, alpha=alpha if alpha is None or len(alpha) == 2 else alpha[0])
        for a, w in zip(alone[:4], whole[:4]):
            assert torch.equal(a.nan_to_num(9.0), w[b : b + 1].nan_to_num(9.0)), f"request {b}, {name}"


@pytest.mark.parametrize("name", [name for name in TABLE if TABLE[name].exact_at is not None])
@pytest.mark.parametrize("method", ["token", "block"])
@pytest.mark.slow
def test_the_exact_end_is_exact(verify, op_backend, name, method):
    if method == "block" and not TABLE[name].defines_distribution:
        pytest.skip("no law")
    args = cases.chain(9, rule_cases.count(200, op_backend), 3, 1100, filtered=True)
    alpha = torch.full((len(args["draft_tokens"]),), TABLE[name].exact_at)
    for a, b in zip(verify(**args, method=method)[:4], verify(**args, method=method, rule=name, alpha=alpha)[:4]):
        assert torch.equal(a.nan_to_num(9.0), b.nan_to_num(9.0))


GOLDEN = {  # emitted distributions for p = (.5, .3, .2), q = (.2, .5, .3)
    ("chow", 0.4): (0.5, 0.3, 0.2), ("chow", 0.6): (0.2, 0.5, 0.3), ("chow_log", 0.9): (0.5, 0.3, 0.2),
    ("diff", 0.1): (0.2, 0.5, 0.3), ("opt", 0.3): (0.2, 0.5, 0.3), ("token_v1", 0.25): (0.1, 0.56, 0.34),
    ("token_v2", 0.25): (0.35, 0.59, 0.06), ("token_v3", 0.5): (0.35, 0.59, 0.06), ("lossy", 0.2): (0.375, 0.375, 0.25),
    ("ensemble", 0.5): (0.35, 0.4, 0.25), ("synthetic", 0.5): (0.35, 0.4, 0.25),
    ("typical", (0.09, 0.3)): (0.2, 0.5, 0.3), ("thresholds", (1.0, 1.0)): (0.5, 0.3, 0.2),
}  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("name", TABLE)
@pytest.mark.law
@pytest.mark.slow
def test_law_of_one_step(sweep, name, pair):
    n = 1024
    # on the other pairs, some golden parameters would give ties
    golden = [a if isinstance(a, tuple) else (a,) for rule, a in GOLDEN if rule == name and pair == "golden"]
    for alpha in rule_cases.ALPHAS[name] + golden:
        got = measured_law(sweep, *PAIRS[pair], name, None if not alpha else alpha if len(alpha) == 2 else alpha[0], n)
        want = one_step(*PAIRS[pair], name, alpha).emitted
        assert np.abs(got - want).max() <= 3 / n + 1e-5, f"{name} {alpha}: {got}, wanted {want}"
        if pair == "golden" and (name, alpha if len(alpha) != 1 else alpha[0]) in GOLDEN:
            assert np.abs(want - GOLDEN[name, alpha if len(alpha) != 1 else alpha[0]]).max() < 1e-12


@pytest.mark.one_backend
def test_lenience_golden(sweep, sweep_backend):
    n = {"cuda-on-cpu": 32}.get(sweep_backend, 1024)
    got = measured_law(sweep, (0.4, 0.3, 0.2, 0.1), (0.1, 0.2, 0.3, 0.4), "lenience", 0.5, n)
    assert np.abs(got - (0.25, 0.25, 0.3, 0.2)).max() <= 3 / n + 1e-5


@pytest.mark.one_backend
def test_block_golden(sweep, sweep_backend):
    """p = (1/3, 2/3), q = (2/3, 1/3), two draft tokens: block verification accepts 11/9 on average. The drafts (0, 0)
    have r = (1/2, 1/4) and s_1 = 0, so both or none are accepted."""
    n = {"cuda-on-cpu": 6}.get(sweep_backend, 32)
    p, q = ln(1 / 3, 2 / 3), ln(2 / 3, 1 / 3)
    u = torch.cartesian_prod(*[torch.from_numpy(quadrature.strata(n))] * 2)
    u = torch.cat([u, torch.full((n * n, 1), 0.5)], 1)
    expected = 0
    for d, chances in {(0, 0): (0.75, 0, 0.25), (0, 1): (0, 0, 1), (1, 0): (0, 0.5, 0.5), (1, 1): (0, 0, 1)}.items():
        out = sweep(
            p.expand(n * n, 3, 2), torch.tensor([d] * (n * n)), q.expand(n * n, 2, 2), uniforms=u, method="block"
        )
        share = np.bincount(out.num_accepted, minlength=3) / (n * n)
        assert np.abs(share - chances).max() <= 2 / n, f"{d}: {share}"
        expected += (2 - d[0]) / 3 * (2 - d[1]) / 3 * np.dot(chances, range(3))
    assert abs(expected - 11 / 9) < 1e-12


@pytest.mark.parametrize("name", rule_cases.LAWS)
@pytest.mark.law
@pytest.mark.slow
def test_joint_law(sweep, name):
    """Tokens and lengths are distributed as enumerated by chain_law. Rows depend on the prefix, and the draft has a
    bonus row."""
    n = 100_000
    p_row, q_row = checks.noise(3, 4), checks.noise(4, 4)
    alpha = rule_cases.ALPHAS[name][-1]
    if name in ("chow", "chow_log", "diff", "diff_log", "opt", "opt_log"):  # some rows defer, some do not
        alpha = {
            "chow": (0.5,),
            "chow_log": (1.0,),
            "diff": (0.1,),
            "diff_log": (0.1,),
            "opt": (0.4,),
            "opt_log": (0.4,),
        }[name]
    rows = lambda row: lambda prefix: row(prefix).double().softmax(-1).numpy()  # noqa: E731
    prefixes = [list(np.ndindex(*([4] * i))) for i in range(3)]
    p_table, q_table = ([torch.stack([row(t) for t in level]) for level in prefixes] for row in (p_row, q_row))
    i = torch.arange(n)
    seed, offset, at = i % 1009, i // 1009, torch.zeros_like(i)
    drafts, p_rows, q_rows = [], [p_table[0][at]], [q_table[0][at]]
    for level in range(2):
        drafts.append(plain_sample(q_rows[-1], seed=seed, offset=offset, slot=level))
        at = at * 4 + drafts[-1]
        p_rows.append(p_table[level + 1][at])
        q_rows.append(q_table[level + 1][at])
    args = (torch.stack(p_rows, 1), torch.stack(drafts, 1), torch.stack(q_rows, 1))
    for method in ("token", "block"):
        law = chain_law(rows(p_row), rows(q_row), 2, method=method, rule=name, alpha=alpha, end_row=True)
        out = sweep(*args, seed=seed, offset=offset, method=method, rule=name, alpha=alpha[0] if alpha else None)
        result = testing.check_tokens(out.tokens.numpy(), law)
        assert result.passed, f"{name}, {method}: {result}"
        assert result.detects < 0.02


@pytest.mark.law
@pytest.mark.slow
def test_block_accepts_as_expected(sweep):
    """Over 10^4 sets of rows, block verification accepts sum r_i tokens on average, with r_0 = 1 and r_i = min(1,
    r_(i-1) p / q). The token method accepts sum prod min(1, p / q). The first sum is never smaller."""
    B, G, V = 10_000, 4, 8
    args = cases.chain(77, B, G, V, dirty=False, kinds=["dirichlet", "near", "peaked"])
    p, q = args["target_logits"].double().softmax(-1), args["draft_logits"].double().softmax(-1)
    d = args["draft_tokens"][..., None]
    ratio = (p[:, :G].gather(-1, d) / q.gather(-1, d))[..., 0]
    r, tokenwise, block, plain = torch.ones(B, dtype=torch.float64), torch.ones(B, dtype=torch.float64), 0, 0
    for i in range(G):
        r, tokenwise = (r * ratio[:, i]).clamp(max=1), tokenwise * ratio[:, i].clamp(max=1)
        block, plain = block + r, plain + tokenwise
    assert (block >= plain - 1e-12).all() and block.mean() > 1.03 * plain.mean()
    for method, want in (("token", plain), ("block", block)):
        got = sweep(**args, method=method).num_accepted.double()
        assert abs(float((got - want).mean())) < 5 * float((got - want).std()) / B**0.5, method


def test_without_a_row_at_the_end_the_bonus_is_of_p(verify):
    rule_checks.without_a_row_at_the_end_the_bonus_is_of_p(verify)


@pytest.mark.parametrize("method", ["token", "block"])
def test_ragged_equals_dense(verify, op_backend, method):
    rule_checks.ragged_equals_dense(verify, op_backend, method)


RATES = (1.0, 0.4, 0.75)


@pytest.mark.parametrize("form", ["tuple", "[1, G]", "[B, G]", "mixed rules"])
def test_a_synthetic_rate_of_each_position(verify, form):
    """Each draft is accepted iff its uniform lies below the rate of its position. In the forms "[B, G]" and "mixed
    rules", the rates of every second request are rotated by one position."""
    B, G, V = 24, 3, 7
    u = torch.rand(B, G + 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    rates = torch.tensor(RATES).expand(B, G).clone()
    rates[::2] = rates[::2].roll(1, 1) if form in ("[B, G]", "mixed rules") else rates[::2]
    rule, alpha = "synthetic", {"tuple": RATES, "[1, G]": rates[1:2], "[B, G]": rates}.get(form)
    if form == "mixed rules":
        rule = torch.full((B,), sk.RULES["synthetic"])
        rule[:3] = sk.RULES["ensemble"]  # ensemble takes the first position's rate: here 1 or .75
        alpha = torch.stack([rates, rates + 9], 2)[..., :1].expand(B, G, 1)
    target = torch.randn(B, G + 1, V, generator=torch.Generator().manual_seed(3))
    drafts = torch.randint(0, V, (B, G), generator=torch.Generator().manual_seed(4))
    args = {"draft_logits": target[:, :G].flip(2), "uniforms": u, "rule": rule, "alpha": alpha}
    out = verify(target, drafts, **args)
    kept = (u[:, :G] < rates).int().cumprod(1).sum(1)
    mine = torch.arange(B) >= (3 if form == "mixed rules" else 0)
    assert torch.equal(out.num_accepted.cpu()[mine], kept[mine].int()) and len(kept.unique()) > 2
    checks.assert_same_tokens(out, reference_verify(target, drafts, **args), form)
    if form == "mixed rules":
        first = {"rule": "ensemble", "draft_logits": args["draft_logits"][:3], "uniforms": u[:3]}
        alone = verify(target[:3], drafts[:3], **first, alpha=rates[:3, 0].contiguous())
        assert torch.equal(out.tokens[:3], alone.tokens)


def test_rates_that_do_not_fit(verify, op_backend):
    args = torch.zeros(2, 4, 5), torch.zeros(2, 3, dtype=torch.int64)
    u = torch.zeros(2, 4, dtype=torch.float64)
    for alpha, text in (
        ((0.5, 0.5), "alpha of rule 'synthetic' must be a rate or 3 of them, got 2"),
        ((0.5, 1.5, 0.5), r"alpha's rate of rule 'synthetic' must be in \[0, 1\], got 1.5"),
        (torch.ones(2, 4), r"alpha must have shape \[2\] or \[2, 2\] or \[2, 3, 1\], got \[2, 4\]"),
    ):
        with pytest.raises(ValueError, match=f"verify_chain: {text}"):
            verify(*args, uniforms=u, rule="synthetic", alpha=alpha)
    if op_backend in ("cpu", "triton-interpret"):
        with pytest.raises(ValueError, match="alpha of rule 'synthetic' must be in .0, 1., got 2 at index 1"):
            verify(*args, uniforms=u, rule="synthetic", alpha=torch.tensor([[1.0, 1, 1], [1, 1, 2]]))
    else:
        wild = torch.tensor([[1.0, 1, 1], [2, torch.nan, -1]])  # clamped to [0, 1]; NaN gives the default
        assert verify(*args, uniforms=u, rule="synthetic", alpha=wild).num_accepted.tolist() == [3, 1]
