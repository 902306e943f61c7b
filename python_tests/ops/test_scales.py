# SPDX-License-Identifier: Apache-2.0
"""Ops agree with the float64 reference at every scale, on every instruction set: temperatures of .01 to 100, gaps of 50
to 300, float32, bfloat16 and float16. Cases are drawn at random; SPECDEC_SEED draws others."""

import math

import numpy as np
import pytest
import test_kseq_rho
import torch
from support import answers as reference
from support import backends, checks, flat, scale_cases
from support.scale_cases import SEED, THOROUGH

from specdec_kernels.reference.banded.band import EPS
from specdec_kernels.rows import Rows

METHODS = ("kseq", "recursive", "recursive_without_replacement", "target_only", "traversal")
V = 9


def share(backend):
    return scale_cases.share_of(backend, backends)


def count(n, backend):
    return n if backends.BACKENDS[backend].slower == 1 else max(4, n // backends.BACKENDS[backend].slower)


def rng_of(*what):
    return np.random.default_rng([SEED, *[hash_of(x) for x in what]])


def hash_of(x):
    return sum(ord(c) * 31**i for i, c in enumerate(str(x))) % 2**32


def assert_logprobs(got, want, what):
    """ln p is off by what p is off by, relatively: reference.banded.band.rounding."""
    assert (got.isnan() == want.isnan()).all() and (got.isinf() == want.isinf()).all(), what
    fine = want.isfinite()
    allowed = EPS * (16 + 3 * want[fine].abs() + 3 * math.log(V))
    assert ((got.double() - want)[fine].abs() <= allowed).all(), what


def agree(op, backend, args, what):
    out, ref = backends.run(op, backend, **args), getattr(reference, op)(**args)
    same = checks.assert_same_tokens(out, ref, what)
    assert_logprobs(out.logprobs[same], ref.logprobs[same], what)
    return ref


@pytest.mark.parametrize("replacement", [False, True])
def test_sample(isa_backend, replacement):
    """All ids of a row, one after the other: what is left falls to e^-600 of the row and stays a law."""
    for cell in share(isa_backend):
        rng = rng_of("sample", replacement, cell)
        few = not THOROUGH and backends.BACKENDS[isa_backend].slower == 1
        _, q = scale_cases.rows(rng, 24 if few else count(64, isa_backend), V, cell)
        u = torch.from_numpy(rng.random((len(q), V + 1)))
        args = dict(logits=q, k=V + 1, replacement=replacement, temperature=cell.T, uniforms=u)
        out, ref = backends.run("sample", isa_backend, **args), flat.call(reference.sample, **args)
        same = (out.tokens == ref.tokens).all(-1)
        assert (same | (ref.margin <= 1)).all(), (cell, out.tokens[~same], ref.tokens[~same])
        assert_logprobs(out.logprobs[same], ref.logprobs[same], cell)
        if not replacement:
            kept = (q > -math.inf).sum(-1)
            assert ((out.tokens >= 0).sum(-1) == kept).all(), f"{cell}: a token was never drawn"


@pytest.mark.slow_in_triton
@pytest.mark.parametrize("method", METHODS)
def test_trees(isa_backend, method):
    accepted, lengths = 0, []
    for i, cell in enumerate(share(isa_backend)):
        rng = rng_of(method, cell)
        args = scale_cases.tree(
            rng, count(24 if not THOROUGH else 48, isa_backend), V, cell, method, K=(2, 3, 5, 8)[i % 4]
        )
        ref = agree("verify_tree", isa_backend, args, (method, cell))
        accepted += int((ref.path[:, 1] > 1).sum())
        lengths.append(ref.num_accepted)
    lengths = torch.cat(lengths)
    if backends.BACKENDS[isa_backend].slower > 1:
        return  # too few to say
    assert accepted > 0 and 0.05 < (lengths == 0).double().mean() < 0.95, (
        "later siblings are accepted, and all of them rejected"
    )


@pytest.mark.parametrize("method", ["token", "block"])
def test_chains(isa_backend, method):
    """Every rule."""
    for cell in share(isa_backend):
        rng = rng_of(method, cell)
        agree(
            "verify_chain", isa_backend, scale_cases.chain(rng, count(72, isa_backend), V, cell, method), (method, cell)
        )


def test_pairs(isa_backend):
    """row_stats, row_gap and kseq_rho."""
    for cell in share(isa_backend):
        p, q = scale_cases.rows(rng_of("pairs", cell), count(48, isa_backend), V, cell)
        stats = [backends.run("row_stats", isa_backend, z, temperature=cell.T) for z in (p, q)]
        for z, s in zip((p, q), stats):
            want = reference.row_stats(Rows(z, temperature=cell.T))
            assert torch.equal(s[:, [0, 1, 3]].double(), want[:, [0, 1, 3]])
            assert (s[:, 2] - want[:, 2]).abs().max() <= EPS * (16 + 3 * math.log(V)), cell
        k = torch.tensor([1, 2, 8, 64]).repeat(len(p))[: len(p)]
        sides = Rows(p, stats=stats[0]), Rows(q, stats=stats[1])
        out = backends.run("kseq_rho", isa_backend, *sides, k)
        laws = [test_kseq_rho.laws_of_logits(z, s) for z, s in zip((p, q), stats)]
        test_kseq_rho.judge(*laws, k.double(), type(out)(*[x.double() for x in out]), test_kseq_rho.LEFT)
        got = backends.run("row_gap", isa_backend, *sides).double()
        want = reference.row_gap(*sides)
        off = (
            EPS * (64 + 3 * math.log(V)) + 2 * EPS * 50
        )  # an id that weighs e^-x has an error of 2 x of its weight, at most 2 / e of all
        assert ((got - want).abs() <= off * (1 + want.abs())).all(), cell


def test_the_least_exponent(isa_backend):
    """An id that weighs less than 2^-126 of the largest weighs nothing; one that weighs more can be drawn where nothing
    else is left."""
    for below, token, status in ((-125.5, 1, 4), (-126.5, 0, 4 | 2), (-140.0, 0, 4 | 2), (-160.0, 0, 4 | 2)):
        p, q = torch.tensor([0.0, below * math.log(2)]), torch.tensor([0.0, -math.inf])
        u = torch.full((1, 2), 0.5, dtype=torch.float64)
        out = backends.run(
            "verify_chain", isa_backend, p.expand(1, 2, 2), torch.tensor([[1]]), q.expand(1, 1, 2), uniforms=u
        )
        assert (out.tokens[0, 0].item(), out.status.item()) == (token, status), below


def test_residual(isa_backend):
    """Rows of probabilities down to the smallest float."""
    rng = rng_of("residual")
    x = np.exp(-rng.uniform(0, 100, (64, V)) * (rng.random((64, V)) < 0.8))
    p, q = (
        torch.tensor(y / y.sum(-1, keepdims=True)).float() for y in (x, x[:, ::-1] * rng.uniform(0.9, 1.1, (64, V)))
    )
    probs, mass = backends.run("residual", isa_backend, p, q)
    want, total = reference.residual(p, q)
    assert torch.allclose(mass.double(), total, rtol=V * EPS * 2, atol=0)
    assert torch.allclose(probs.double(), want, rtol=V * EPS * 4, atol=2.0**-149)
