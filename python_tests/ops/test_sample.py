# SPDX-License-Identifier: Apache-2.0
"""sample: tokens and logprobs against the reference, distributions, random numbers and degenerate rows."""

import math

import pytest
import torch
from support import backends, cases, quadrature, tally
from support.backends import scale
from support.checks import ALMOST_ONE, assert_floats, ln, torch_logprob_error
from support.plain import Plain

from specdec_kernels import testing
from specdec_kernels.registry import SAMPLING
from specdec_kernels.rows import Rows


def assert_sample(backend, z, what="", **args):
    """Check that tokens equal the reference's outside the band, and that ln q is within torch's own error."""
    got, ref = backends.run("sample", backend, z, **args), backends.run("sample", "reference", z, **args)
    same = (got.tokens == ref.tokens).all(-1)
    assert (same | (ref.margin <= 1)).all(), (
        f"{what}: rows {(~same & (ref.margin > 1)).nonzero()[:5, 0].tolist()} differ"
    )
    tally.record(len(z), int((~same).sum()))
    params = {k: args.get(k) for k in SAMPLING}
    error = torch_logprob_error(z[:, None], params) if args.get("stats") is None else 1e-6
    assert_floats(got.logprobs[same], ref.logprobs[same], error, what)
    return got, ref


def given(n, k, seed=0):
    return torch.rand(n, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("V", [1, 5, 33, 1025, 4099])
def test_agrees_with_the_reference(backend, V, dtype, replacement):
    n = scale(210 if V < 1000 else 42, backend)
    z, _ = cases.rows_pair(1, n, V, dtype=dtype)
    assert_sample(backend, z, uniforms=given(n, 4), k=4, replacement=replacement)
    assert_sample(backend, z, uniforms=given(n, 4), k=4, replacement=replacement, **cases.parameters(2, n))


@pytest.mark.parametrize("replacement", [True, False])
def test_stats_handed_over_give_the_same_tokens(backend, replacement):
    n = scale(140, backend)
    z, _ = cases.rows_pair(3, n, 257)
    params, u = cases.parameters(4, n), given(n, 3)
    whole = backends.run("sample", backend, z, k=3, replacement=replacement, uniforms=u, **params)
    stats = backends.run("row_stats", backend, z, **params)
    handed = backends.run("sample", backend, Rows(z, stats=stats), 3, replacement, uniforms=u)
    assert torch.equal(whole.rows.stats, stats) and torch.equal(handed.rows.stats, stats)
    assert torch.equal(whole.tokens, handed.tokens) and torch.equal(whole.logprobs, handed.logprobs)


@pytest.mark.one_backend
def test_every_edge_by_quadrature(backend):
    """With stratified u, each token's share is its probability to within 1/n, also in rows of several chunks."""
    n = scale(4096, backend)
    for V, params in [
        (7, {}),
        (7, {"temperature": 0.6, "top_k": 4}),
        (7, {"top_p": 0.7}),
        (2050, {"temperature": 0.4}),
    ]:
        z, _ = cases.rows_pair(5, 1, V, kinds=["near"])
        out = backends.run(
            "sample", backend, z.expand(n, -1), uniforms=torch.from_numpy(quadrature.strata(n))[:, None], **params
        )
        quadrature.assert_quadrature(
            out.tokens[:, 0].numpy(), Plain().laws(z[None], **params)[0, 0].numpy(), f"V={V} {params}"
        )


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.law
@pytest.mark.slow
def test_joint_law_of_several_draws(backend, replacement):
    """The joint distribution of k = 3 draws from seeds with V = 5, with and without replacement. Detects a total
    variation of .007; a draw that is not renormalised, or two draws that share a slot, are off by far more."""
    z = ln(0.35, 0.3, 0.2, 0.1, 0.05)
    p = Plain().laws(z[None, None])[0, 0].tolist()
    law = {}
    for a in range(5):
        for b in range(5):
            for c in range(5):
                if replacement:
                    law[a, b, c] = p[a] * p[b] * p[c]
                elif len({a, b, c}) == 3:
                    law[a, b, c] = p[a] * p[b] / (1 - p[a]) * p[c] / (1 - p[a] - p[b])
    n = 20_000 if backend == "reference" else 500_000
    i = torch.arange(n)
    out = backends.run(
        "sample", backend, z.expand(n, -1), k=3, replacement=replacement, seed=i % 1009, offset=i // 1009
    )
    result = testing.check_tokens(out.tokens.numpy(), law)
    assert result.passed and (result.detects < 0.01 or n < 500_000), result


@pytest.mark.parametrize("slot", [2**33 - 1, 2**33, 2**63 - 1, -1])
def test_the_low_33_bits_of_a_slot_count(backend, slot):
    """A tensor's slots are taken modulo 2^33: slot 2^33 - 1 is followed by 0. Numbers beyond that are refused
    (test_arguments)."""
    z, seed = torch.zeros(2, 1000), torch.tensor([3, 4])
    first = slot % 2**33
    got = backends.run("sample", backend, z, k=3, seed=seed, offset=seed, slot=torch.tensor([slot, 7])).tokens
    alone = [
        int(backends.run("sample", backend, z[:1], seed=seed[:1], offset=seed[:1], slot=(first + i) % 2**33).tokens)
        for i in range(3)
    ]
    assert got[0].tolist() == alone and len(set(alone)) > 1
    assert torch.equal(
        got[1:], backends.run("sample", backend, z[1:], k=3, seed=seed[1:], offset=seed[1:], slot=7).tokens
    )


@pytest.mark.parametrize("slot", [-1, 2**33, 2**63 - 1])
def test_a_number_is_a_slot(op_backend, slot):
    with pytest.raises(ValueError, match=rf"sample: slot must be in \[0, 2\^33\), got {slot}"):
        backends.run("sample", op_backend, torch.zeros(2, 5), seed=torch.arange(2), offset=torch.arange(2), slot=slot)


def test_seed_offset_and_slot(backend):
    """Draw i uses the random number of slot + i in domain 2 (the drafts' domain)."""
    z, _ = cases.rows_pair(6, 56, 40, kinds=["dirichlet", "near"])
    seed, offset = torch.arange(56) * 2**40 - 7, torch.arange(56) * 2**33
    u = backends.run("uniforms", backend, seed, offset, 9, 2)
    for slot in (0, 1, 5):
        got = backends.run("sample", backend, z, k=3, seed=seed, offset=offset, slot=slot)
        want = backends.run("sample", backend, z, k=3, uniforms=u[:, slot : slot + 3].contiguous())
        assert torch.equal(got.tokens, want.tokens)
    slots = torch.arange(56) % 6
    got = backends.run("sample", backend, z, k=3, seed=seed, offset=offset, slot=slots)
    want = backends.run("sample", backend, z, k=3, uniforms=u.gather(1, slots[:, None] + torch.arange(3)))
    assert torch.equal(got.tokens, want.tokens)


def test_ends_of_the_unit_interval(backend):
    """u = 0 draws the first token with mass, and u = 1 - 2^-53 the last. A token with probability 0 is never drawn."""
    z = torch.tensor([[-math.inf, 1.0, -math.inf, 0.5, -math.inf]])
    u = torch.tensor([[0.0, ALMOST_ONE]], dtype=torch.float64)
    assert backends.run("sample", backend, z, k=2, uniforms=u).tokens.tolist() == [[1, 3]]
    wide = torch.full((1, 3000), -math.inf)
    wide[0, 1500], wide[0, 1501] = 2.0, 1.0
    assert backends.run("sample", backend, wide, k=2, uniforms=u).tokens.tolist() == [[1500, 1501]]


def test_without_replacement_runs_dry(backend):
    z = torch.tensor([[0.0, -math.inf, 1.0, -math.inf]])
    out = backends.run("sample", backend, z, k=4, replacement=False, uniforms=given(1, 4))
    assert sorted(out.tokens[0, :2].tolist()) == [0, 2] and out.tokens[0, 2:].tolist() == [-1, -1]
    assert out.logprobs[0, 2:].tolist() == [-math.inf, -math.inf]
    assert out.logprobs[0, :2].exp().sum().item() == pytest.approx(1, abs=1e-6)


def test_without_replacement_takes_every_token_once(backend):
    z, _ = cases.rows_pair(7, 30, 12, kinds=["dirichlet", "near"])
    out = backends.run("sample", backend, z, k=12, replacement=False, uniforms=given(30, 12))
    assert torch.equal(out.tokens.sort(-1).values, torch.arange(12).expand(30, -1))


def test_greedy(backend):
    z = torch.tensor([[1.0, 5.0, 5.0, 2.0]])
    out = backends.run("sample", backend, z, k=3, temperature=0)
    assert out.tokens.tolist() == [[1, 1, 1]] and out.logprobs.tolist() == [[0, 0, 0]]
    out = backends.run("sample", backend, z, k=3, replacement=False, temperature=0)
    assert out.tokens.tolist() == [[1, -1, -1]] and out.logprobs.tolist() == [[0, -math.inf, -math.inf]]


@pytest.mark.parametrize("V", [1, 9, 1025])
def test_invalid_rows_leave_the_others_alone(backend, V):
    bad = cases.bad_rows(V)
    good, _ = cases.rows_pair(8, 1, V)
    z = torch.cat([torch.stack([row for row, _ in bad]), good])
    u = given(len(z), 1)
    out = backends.run("sample", backend, z, uniforms=u)
    assert out.tokens[:-1, 0].tolist() == [argmax for _, argmax in bad]
    assert out.logprobs[:-1].isnan().all()
    alone = backends.run("sample", backend, good, uniforms=u[-1:])
    assert torch.equal(out.tokens[-1:], alone.tokens) and torch.equal(out.logprobs[-1:], alone.logprobs)


def test_batch_order_strides_and_empty(backend):
    n = scale(64, backend)
    z, _ = cases.rows_pair(9, n, 1500)
    params = cases.parameters(10, n)
    seed, offset = torch.arange(n) + 99, torch.arange(n) % 5
    whole = backends.run("sample", backend, z, k=2, seed=seed, offset=offset, **params)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(1))
    shuffled = backends.run(
        "sample",
        backend,
        cases.strided(z[order]),
        k=2,
        seed=seed[order],
        offset=offset[order],
        **{name: x[order] for name, x in params.items()},
    )
    assert torch.equal(shuffled.tokens, whole.tokens[order])
    for i in range(0, n, 9):
        alone = backends.run(
            "sample",
            backend,
            z[i : i + 1],
            k=2,
            seed=seed[i : i + 1],
            offset=offset[i : i + 1],
            **{name: x[i : i + 1] for name, x in params.items()},
        )
        assert torch.equal(alone.tokens[0], whole.tokens[i])
    assert backends.run("sample", backend, z[:0], k=2, seed=seed[:0], offset=offset[:0]).tokens.shape == (0, 2)


def test_bad_arguments(op_backend):
    sample, row_stats = (backends.call(op, op_backend) for op in ("sample", "row_stats"))
    z, u = torch.randn(3, 5), given(3, 2)
    with pytest.raises(ValueError, match="sample: needs seed and offset, or uniforms, got neither"):
        sample(z)
    with pytest.raises(ValueError, match="sample: seed and offset go together"):
        sample(z, seed=torch.arange(3))
    with pytest.raises(ValueError, match=r"sample: uniforms must have shape \[3, 1\], got \[3, 2\]"):
        sample(z, uniforms=u)
    with pytest.raises(ValueError, match="sample: uniforms must be float64, got float32"):
        sample(z, k=2, uniforms=u.float())
    with pytest.raises(ValueError, match="sample: rows.stats already hold the sampling parameters"):
        sample(Rows(z, stats=row_stats(z), temperature=0.5), k=2, uniforms=u)
    with pytest.raises(ValueError, match=r"sample: rows.stats must have shape \[N=3, 4=?4?\], got \[2, 4\]"):
        sample(Rows(z, stats=row_stats(z[:2])), k=2, uniforms=u)
    with pytest.raises(ValueError, match=r"sample: k must be in \[0, 2\^33\], got -1"):
        sample(z, k=-1, uniforms=u)
    with pytest.raises(ValueError, match=r"sample: seed must have shape \[3\] or \[1\], got \[4\]"):
        sample(z, seed=torch.arange(4), offset=torch.arange(3))
