# SPDX-License-Identifier: Apache-2.0
"""verify_chain against the float64 reference, enumerated distributions and single rules. Edges and invariance have
their own files."""

import numpy as np
import pytest
import torch
from support import backends, cases, checks, quadrature, tiers
from support.backends import scale
from support.checks import ln

from specdec_kernels.registry import SAMPLING

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


@pytest.fixture
def verify(backend):
    return backends.call("verify_chain", backend)


AGREEMENT = {
    "tiny": {"B": 600, "G": 3, "V": 5},
    "one id": {"B": 30, "G": 3, "V": 1},
    "no draft": {"B": 40, "G": 0, "V": 9},
    "long chain": {"B": 100, "G": 16, "V": 12, "kinds": ["near", "identical"]},
    "filters": {"B": 600, "G": 3, "V": 33, "filtered": True},
    "chunk": {"B": 90, "G": 2, "V": 1024, "filtered": True},
    "chunk and one": {"B": 90, "G": 2, "V": 1025, "filtered": True, "dtype": BF16},
    "several chunks, prime": {"B": 40, "G": 3, "V": 5003},
    "bf16": {"B": 300, "G": 4, "V": 130, "dtype": BF16},
    "fp16": {"B": 300, "G": 4, "V": 130, "dtype": F16, "filtered": True},
    "fp32 against bf16": {"B": 300, "G": 4, "V": 65, "dtype": F32, "draft_dtype": BF16},
    "bf16 against fp16": {"B": 300, "G": 4, "V": 65, "dtype": BF16, "draft_dtype": F16, "filtered": True},
    "narrow draft": {"B": 400, "G": 3, "V": 40, "Vq": 23, "filtered": True},
    "narrow draft, chunks": {"B": 40, "G": 2, "V": 2100, "Vq": 1030},
    "wide draft": {"B": 400, "G": 3, "V": 23, "Vq": 40, "filtered": True},
    "wide draft, chunks": {"B": 40, "G": 2, "V": 1030, "Vq": 2100},
    "many": {"B": 12_000, "G": 2, "V": 9},  # large in test-all, to measure how many requests differ inside the band
    "one-hot": {"B": 400, "G": 3, "V": 40, "one_hot": True},
    "one-hot, filters": {"B": 400, "G": 3, "V": 40, "one_hot": True, "filtered": True, "dtype": BF16},
    "one-hot, chunks": {"B": 40, "G": 2, "V": 3001, "one_hot": True},
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "many")) for n in AGREEMENT])
def test_agrees_with_the_reference(verify, backend, name):
    case = AGREEMENT[name] | ({"B": scale(AGREEMENT[name]["B"], backend)} if name != "many" else {})
    if name == "many" and tiers.TIER != "all":
        case["B"] //= 8 if backend in tiers.SIMULATED else 2  # the requests of other tests count too (support/tally.py)
    out, ref = checks.check_agreement(verify, seed=17, **case)
    assert out.tokens.dtype == torch.int64 and out.num_accepted.dtype == torch.int32 and out.status.dtype == torch.int32
    assert (ref.margin <= 1).double().mean() < (0.02 if case["V"] < 1500 else 0.15) or case["B"] < 30, (
        "the band would hide too much"
    )
    if case["G"] and case["V"] > 1 and case["B"] >= 30:
        accepted = ref.num_accepted.double().mean() / case["G"]
        assert 0.02 < accepted < 0.98, "not a test of both outcomes"


@pytest.mark.parametrize("seed", range(40))
def test_agrees_on_any_shape(verify, backend, seed):
    """Random shapes, dtypes and kinds of rows, to find what the named cases miss."""
    rng = np.random.default_rng(seed)
    V = int(rng.choice([2, 3, 8, 17, 64, 100, 255, 1023, 1026]))
    checks.check_agreement(
        verify,
        seed=1000 + seed,
        B=scale(int(rng.integers(1, 60)), backend, least=4),
        G=int(rng.integers(0, 7)),
        V=V,
        Vq=max(1, V + int(rng.integers(-V, V))) if rng.random() < 0.5 else None,
        dtype=[F32, F16, BF16][rng.integers(3)],
        draft_dtype=[F32, F16, BF16][rng.integers(3)],
        filtered=bool(rng.integers(2)),
        one_hot=bool(rng.random() < 0.2),
        kinds=list(rng.choice(cases.KINDS, 3)),
    )


@pytest.mark.parametrize("which", ["target", "draft", "both"])
def test_agrees_on_probability_rows(verify, backend, which):
    """If both sides are probabilities, nothing is rounded before the comparison, so acceptances are equal without a
    band."""
    args = cases.chain(5, scale(400, backend), 3, 37)
    if which in ("target", "both"):
        args |= {"target_logits": args["target_logits"].softmax(-1), "target_kind": "probs"}
    if which in ("draft", "both"):
        args |= {"draft_logits": args["draft_logits"].softmax(-1), "draft_kind": "probs"}
    out, ref = verify(**args), checks.reference_verify(**args)
    same = checks.assert_same_tokens(out, ref, which)
    checks.assert_floats(out.logprobs[same], ref.logprobs[same], 1e-6, "logprobs")
    if which == "both":
        assert torch.equal(out.num_accepted, ref.num_accepted)


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_half_precision_probability_rows(verify, backend, dtype):
    """Half-precision rows sum to 1 only up to rounding, and q may reach 1 + 2^-8."""
    args = cases.chain(6, scale(300, backend), 3, 21)
    for side in ("target", "draft"):
        args |= {f"{side}_logits": args[f"{side}_logits"].softmax(-1).to(dtype), f"{side}_kind": "probs"}
    checks.assert_same_tokens(verify(**args), checks.reference_verify(**args), str(dtype))


@pytest.mark.parametrize("target, draft", [(True, True), (True, False), (False, True)])
def test_stats_handed_over(verify, backend, target, draft):
    """Stats given for either side, from row_stats, give the same tokens as the parameters that they were made with."""
    args = cases.chain(7, scale(300, backend), 3, 300, filtered=True, dtype=BF16)
    want = verify(**args)
    for prefix, logits, on in (("", "target_logits", target), ("draft_", "draft_logits", draft)):
        if on:
            z = args[logits]
            params = {k: args.pop(prefix + k).repeat_interleave(z.shape[1]) for k in SAMPLING}
            stats = backends.run("row_stats", backend, z.reshape(-1, z.shape[-1]), **params).reshape(*z.shape[:2], 4)
            args["draft_stats" if prefix else "target_stats"] = stats
    got = verify(**args)
    assert torch.equal(got.tokens, want.tokens) and torch.equal(got.status, want.status)
    assert torch.allclose(got.logprobs, want.logprobs, atol=2e-6, equal_nan=True)


@pytest.mark.parametrize("bonus", [False, True])
@pytest.mark.parametrize("one_hot", [False, True])
def test_ragged_equals_dense(verify, backend, bonus, one_hot):
    B = scale(120, backend)
    args = cases.chain(8, B, 4, 50, filtered=True, one_hot=one_hot, dirty=False)
    lengths = torch.randint(0, 5, (B,), generator=torch.Generator().manual_seed(0))
    args["draft_tokens"][torch.arange(4)[None] >= lengths[:, None]] = -1
    ragged = dict(args)
    if bonus:  # a short dense draft cannot have a bonus token, so only full ones are compared below
        args["bonus_tokens"] = ragged["bonus_tokens"] = torch.arange(B) % 50
        args["target_logits"] = args["target_logits"][:, :4]
    ragged["cu_draft"] = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    ragged["max_draft"] = 4
    ragged["draft_tokens"] = torch.cat([row[:g] for row, g in zip(args["draft_tokens"], lengths)])
    ragged["target_logits"] = torch.cat([rows[: g + (not bonus)] for rows, g in zip(args["target_logits"], lengths)])
    if not one_hot:
        ragged["draft_logits"] = torch.cat([rows[:g] for rows, g in zip(args["draft_logits"], lengths)])
    dense, out = verify(**args), verify(**ragged)
    rows = lengths == 4 if bonus else lengths >= 0
    for got, want in zip(out[:4], dense[:4]):
        assert torch.equal(got[rows].nan_to_num(9.0), want[rows].nan_to_num(9.0))
    checks.assert_same_tokens(out, checks.reference_verify(**ragged), "ragged")


def test_ragged_gaps_and_index_dtypes(verify):
    """Ragged calls accept int32 and int64 for ids and cu_draft. The first and the last request have no draft."""
    z = torch.randn(7, 11, generator=torch.Generator().manual_seed(1))
    u = torch.rand(4, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    args = dict(target_logits=z, draft_tokens=torch.tensor([3, 4, 5]), max_draft=2, uniforms=u)
    want = checks.reference_verify(**args, cu_draft=torch.tensor([0, 0, 2, 3, 3]))
    for dtype in (torch.int32, torch.int64):
        out = verify(
            **{**args, "draft_tokens": args["draft_tokens"].to(dtype)},
            cu_draft=torch.tensor([0, 0, 2, 3, 3], dtype=dtype),
        )
        checks.assert_same_tokens(out, want)


def test_bonus_tokens(verify):
    """On full acceptance the given token is emitted, with logprob NaN. Outside the vocabulary it sets status 8: a
    negative one becomes 0, a larger one is emitted unchanged. After a rejection it is ignored."""
    p = ln(0.5, 0.3, 0.2).expand(6, 1, 3)
    drafts = torch.tensor([[0], [0], [0], [0], [0], [2]])
    u = torch.tensor([[0.0, 0.0]] * 5 + [[checks.ALMOST_ONE, 0.0]], dtype=torch.float64)
    bonus = torch.tensor([2, 3, 7, 2**62, -4, 1])
    for how in ({}, {"method": "block"}, {"rule": "lenience", "alpha": 0.5}):
        out = verify(p, drafts, None, bonus_tokens=bonus, uniforms=u, **how)
        assert out.tokens.tolist() == [[0, 2], [0, 3], [0, 7], [0, 2**62], [0, 0], [0, -1]]
        assert out.status.tolist() == [0, 8, 8, 8, 8, 0]
        assert out.logprobs[:5, 1].isnan().all() and not out.logprobs[:, 0].isnan().any()
    args = dict(target_logits=p, draft_tokens=drafts, bonus_tokens=bonus, uniforms=u)
    checks.assert_same_tokens(out, checks.reference_verify(**args))


def test_golden(verify):
    checks.check_golden(verify)


def test_the_test_is_strict(verify):
    checks.check_strict(verify)


def test_ties(verify):
    checks.check_ties(verify)


def test_streams(verify, backend):
    checks.check_streams(verify, scale(400, backend))


def test_seeds_are_the_uniforms_made_visible(verify, backend):
    B = scale(200, backend)
    args = cases.chain(9, B, 5, 64, filtered=True)
    args.pop("uniforms")
    seed, offset = torch.arange(B) * 2**50, torch.arange(B) * 2**31
    u = torch.cat([backends.run("uniforms", backend, seed, offset, n, domain) for n, domain in ((5, 0), (1, 1))], 1)
    for got, want in zip(verify(**args, seed=seed, offset=offset)[:4], verify(**args, uniforms=u)[:4]):
        assert torch.equal(got.nan_to_num(9.0), want.nan_to_num(9.0))


STRATA = {
    "cuda-on-cpu": 64,
    "cuda-on-cpu-checked": 16,
    "triton-interpret": 256,
}  # elsewhere 1024: an edge is located to 1 / strata


@pytest.mark.one_backend
@pytest.mark.slow
def test_every_edge_by_quadrature(verify, backend):
    checks.check_quadrature(verify, n=STRATA.get(backend, 1024))


@pytest.mark.one_backend
def test_every_edge_by_quadrature_golden(verify, backend):
    target, draft = ln([0.5, 0.3, 0.2], [0.4, 0.4, 0.2], [0.1, 0.2, 0.7]), ln([0.2, 0.5, 0.3], [0.3, 0.2, 0.5])
    checks.check_quadrature(verify, target, draft, n=STRATA.get(backend, 1024))


@pytest.mark.parametrize("scenario", checks.SCENARIOS)
@pytest.mark.law
@pytest.mark.slow
def test_joint_law(backend, verify, scenario):
    """The joint distribution over 10^6 steps (a fifth of them in make test). Drafts are drawn by the sample op with the
    same seeds, so drafting, acceptance and final draw are tested together."""

    def sample(logits, seed, offset, slot, **params):
        return backends.run("sample", backend, logits, seed=seed, offset=offset, slot=slot, **params).tokens[:, 0]

    n = 4_000 if backend == "reference" else 1_000_000 if tiers.TIER == "all" else 200_000
    result = checks.check_joint_law(verify, scenario, n=n, sample=sample)
    assert result.detects < (0.013 if n == 1_000_000 else 0.013 * 5**0.5) or n < 200_000


def test_greedy_and_sampled_requests_mix(verify, backend):
    """A greedy request only compares drafts with the argmax: it reads neither q nor a uniform."""
    B = scale(90, backend, least=15)
    args = cases.chain(10, B, 3, 25, kinds=["near"])
    temperature = torch.tensor([0.0, 1.0, 0.6]).repeat(30)[:B]
    out = verify(**args, temperature=temperature)
    checks.assert_same_tokens(out, checks.reference_verify(**args, temperature=temperature))
    greedy = temperature == 0
    poisoned = {
        **args,
        "draft_logits": torch.where(greedy[:, None, None], torch.nan, args["draft_logits"]),
        "uniforms": torch.where(greedy[:, None], 0.999, args["uniforms"]),
    }
    again = verify(**poisoned, temperature=temperature)
    assert torch.equal(out.tokens, again.tokens) and torch.equal(out.status, again.status)
    assert (out.logprobs[greedy] == 0).all()


def test_greedy_needs_no_random_numbers(verify):
    z = torch.randn(2, 4, 9, generator=torch.Generator().manual_seed(4))
    best = z.argmax(-1)
    drafts = best[:, :3].clone()
    drafts[1, 1] = (drafts[1, 1] + 1) % 9
    out = verify(z, drafts, None, temperature=0)
    assert out.tokens.tolist() == [best[0].tolist(), [*best[1, :2].tolist(), -1, -1]]


def test_identical_laws_accept_everything(verify, backend):
    """With p == q bit for bit, every draft is accepted up to u = 1 - 2^-53, with filters too."""
    n = scale(60, backend)
    z, _ = cases.rows_pair(11, n, 70)
    u = torch.full((n, 2), checks.ALMOST_ONE, dtype=torch.float64)
    drafts = backends.run("sample", "reference", z, uniforms=torch.rand(n, 1, dtype=torch.float64), top_p=0.9).tokens
    out = verify(z[:, None].expand(n, 2, 70), drafts, z[:, None], top_p=0.9, draft_top_p=0.9, uniforms=u)
    assert (out.num_accepted == 1).all() and (out.status == 0).all()


@pytest.mark.law
@pytest.mark.slow
def test_expected_tokens_match_the_theory(verify, backend):
    """On identical positions, the mean number of emitted tokens is Leviathan's Eq. (1), within 5 sigma."""
    from specdec_kernels import theory

    p, q = ln(0.5, 0.3, 0.2), ln(0.2, 0.5, 0.3)
    n, gamma = scale(20_000, backend), 4
    rng = torch.Generator().manual_seed(5)
    drafts = torch.multinomial(q.softmax(-1), n * gamma, replacement=True, generator=rng).reshape(n, gamma)
    out = verify(
        p.expand(n, gamma + 1, 3),
        drafts,
        q.expand(n, gamma, 3),
        seed=torch.arange(n),
        offset=torch.zeros(n, dtype=torch.int64),
    )
    emitted = (out.num_accepted + 1).double()
    alpha = theory.acceptance_rate(p.softmax(-1), q.softmax(-1)).item()
    assert abs(emitted.mean() - theory.expected_tokens(alpha, gamma)) < 5 * emitted.std() / n**0.5


def test_quadrature_helper_sees_one_stratum():
    with pytest.raises(AssertionError):
        quadrature.assert_quadrature(np.repeat(range(4), 256), [0.255, 0.245, 0.25, 0.25], "off by .5%")
