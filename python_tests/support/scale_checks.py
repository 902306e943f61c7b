# SPDX-License-Identifier: Apache-2.0
"""Checks of ops against the float64 reference at every scale. Mutants of the sources must fail them."""

import math

import numpy as np
import torch
from support import answers as reference
from support import backends, checks, flat, scale_cases
from support.scale_cases import SEED, THOROUGH

from specdec_kernels.reference.banded.band import EPS

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
    """Check ln p, whose absolute error is the relative error of p: reference.banded.band.rounding."""
    assert (got.isnan() == want.isnan()).all() and (got.isinf() == want.isinf()).all(), what
    fine = want.isfinite()
    allowed = EPS * (16 + 3 * want[fine].abs() + 3 * math.log(V))
    assert ((got.double() - want)[fine].abs() <= allowed).all(), what


def agree(op, backend, args, what):
    out, ref = backends.run(op, backend, **args), getattr(reference, op)(**args)
    same = checks.assert_same_tokens(out, ref, what)
    assert_logprobs(out.logprobs[same], ref.logprobs[same], what)
    return ref


def sample(isa_backend, replacement):
    """Draw all ids of a row, one after the other.

    The mass left falls to e^-600 of the row's, and the draws still follow its distribution.
    """
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


def trees(isa_backend, method):
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
        return  # too few to check
    assert accepted > 0 and 0.05 < (lengths == 0).double().mean() < 0.95, (
        "later siblings are accepted, and all of them rejected"
    )


def the_least_exponent(isa_backend):
    """Check that an id with less than 2^-126 of the largest weight counts as 0.

    An id with more can be drawn if nothing else is left.
    """
    for below, token, status in ((-125.5, 1, 4), (-126.5, 0, 4 | 2), (-140.0, 0, 4 | 2), (-160.0, 0, 4 | 2)):
        p, q = torch.tensor([0.0, below * math.log(2)]), torch.tensor([0.0, -math.inf])
        u = torch.full((1, 2), 0.5, dtype=torch.float64)
        out = backends.run(
            "verify_chain", isa_backend, p.expand(1, 2, 2), torch.tensor([[1]]), q.expand(1, 1, 2), uniforms=u
        )
        assert (out.tokens[0, 0].item(), out.status.item()) == (token, status), below
