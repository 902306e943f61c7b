# SPDX-License-Identifier: Apache-2.0
"""row_gap against the float64 reference and against numbers computed by hand."""

import math

import pytest
import torch
from support import answers as reference
from support import backends, cases, rule_cases
from support.checks import ln

import specdec_kernels as sk
from specdec_kernels.reference.banded.band import EPS

SHAPES = {
    "one id": (1, 1),
    "tiny": (5, 5),
    "narrow draft": (40, 23),
    "wide draft": (1030, 2100),
    "chunks": (3001, 3001),
}


def assert_close(got, want, V):
    """Check sums of V float32 weights. Each weight is off by a few ulp (reference/banded/band.py), a sum over chunks by
    32 ulp, and an entropy by ln V times as much."""
    assert torch.equal(got.isnan(), want.isnan())
    bound = (
        (64 + 8 * math.log(V)) * EPS * torch.tensor([1, 1, 1 + math.log(V), 1 + math.log(V), 1, 1], dtype=torch.float64)
    )
    assert ((got - want).nan_to_num(0.0).abs() <= bound).all(), (got - want).nan_to_num(0.0).abs().max(0).values


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_agrees_with_the_reference(op_backend, shape, dtype):
    V, Vq = SHAPES[shape]
    p, q = cases.rows_pair(3, rule_cases.count(140, op_backend), V, Vq, dtype)
    gap = backends.call("row_gap", op_backend)
    assert_close(gap(p, q), reference.row_gap(p, q), V)
    stats = [backends.run("row_stats", op_backend, sk.Rows(z, temperature=0.7, top_k=7)) for z in (p, q)]
    sides = [sk.Rows(z, stats=own) for z, own in zip((p, q), stats)]
    assert_close(gap(*sides), reference.row_gap(*sides), V)
    p, q = p.float().softmax(-1).to(dtype), q.float().softmax(-1).to(dtype)
    assert_close(gap(p, q, kind="probs"), reference.row_gap(sk.Rows(p, kind="probs"), sk.Rows(q, kind="probs")), V)


def test_by_hand(op_backend):
    gap = backends.call("row_gap", op_backend)
    h = -sum(x * math.log(x) for x in (0.5, 0.3, 0.2))
    got = gap(ln(0.5, 0.3, 0.2)[None], ln(0.2, 0.5, 0.3)[None])
    assert torch.allclose(got, torch.tensor([[0.3, 0.7, h, h, 0.5, 0.5]]), atol=1e-6)
    p, q = torch.tensor([[0.2, 0.4, 0.4]]), torch.tensor([[0.5, 0.35, 0.15]])
    want = torch.tensor([[0.3, 0.7, 1.0549202, 0.9985793, 0.4, 0.5]])
    assert torch.allclose(gap(p, q, kind="probs"), want, atol=1e-6)
    apart = gap(ln(1.0, 0.0)[None], ln(0.0, 1.0)[None])
    assert apart.tolist() == [[1, 0, 0, 0, 1, 1]]
    greedy = backends.run("row_stats", op_backend, torch.tensor([[0.0, 2.0]]), temperature=0.0)
    rows = sk.Rows(torch.tensor([[0.0, 2.0]]), stats=greedy)
    assert gap(rows, rows).tolist() == [[0, 1, 0, 0, 1, 1]]


@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_rows_that_are_no_law(op_backend, kind):
    rows = (
        [row for row, _ in cases.bad_rows(1100)] if kind == "logits" else [torch.full((5,), math.nan), torch.zeros(5)]
    )
    bad = torch.stack(rows)
    good = torch.full_like(bad, 1 / bad.shape[1])
    gap = backends.call("row_gap", op_backend)
    nan = lambda *at: torch.tensor([i in at for i in range(6)]).expand(len(bad), 6)  # noqa: E731
    assert torch.equal(gap(bad, good, kind=kind).isnan(), nan(0, 1, 2, 4))
    assert torch.equal(gap(good, bad, kind=kind).isnan(), nan(0, 1, 3, 5))


def test_empty_and_wrong():
    assert sk.row_gap(torch.zeros(0, 5), torch.zeros(0, 4)).shape == (0, 6)
    z = torch.zeros(2, 5)
    for arguments, error, message in [
        ((z, torch.zeros(3, 5)), ValueError, r"q.logits must have shape \[N=2, Vq=5\], got \[3, 5\]"),
        ((z, z.double()), ValueError, "q.logits must be float32, bfloat16 or float16, got float64"),
        ((sk.Rows(z, stats=torch.zeros(2, 3)), z), ValueError, r"p.stats must have shape \[N=2, 4\], got \[2, 3\]"),
        (
            (sk.Rows(z, kind="probs"), sk.Rows(z, stats=torch.zeros(2, 4), kind="probs")),
            ValueError,
            "q.stats and sampling parameters need q.kind='logits', got 'probs'",
        ),
        ((z, sk.Rows(z, kind="probs")), ValueError, "p.kind and q.kind must be the same, got 'logits' and 'probs'"),
        ((z, sk.Rows(z, kind="odds")), ValueError, "q.kind must be 'logits' or 'probs', got 'odds'"),
    ]:
        with pytest.raises(error, match="row_gap: " + message):
            sk.row_gap(*arguments)
