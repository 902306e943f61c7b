# SPDX-License-Identifier: Apache-2.0
"""The reference against numbers made by hand, and its margin against its definition."""

import pytest
import torch
from support import checks
from support.checks import ln

from specdec_kernels import reference
from specdec_kernels.reference import banded
from specdec_kernels.rows import Rows


@pytest.mark.parametrize("check", [checks.check_golden, checks.check_strict, checks.check_ties, checks.check_streams])
def test_single_rules(check):
    check(reference.verify_chain)


def test_every_edge():
    checks.check_quadrature(reference.verify_chain, ln([0.5, 0.3, 0.2], [0.1, 0.2, 0.7]), ln([0.2, 0.5, 0.3]), n=100)


def step(u, v, q=(0.2, 0.5, 0.3)):
    """Verify draft 1 of the golden pair. It is accepted below u = .6. With q = (.4, .5, .1) the residual's edge is at v
    = .5."""
    uniforms = torch.tensor([[u, v]], dtype=torch.float64)
    return banded.verify_chain(
        ln(0.5, 0.3, 0.2).expand(1, 2, 3), torch.tensor([[1]]), ln(*q).expand(1, 1, 3), uniforms=uniforms
    )


def test_margin_is_small_at_an_edge_and_large_elsewhere():
    assert step(0.6 + 1e-8, 0.5).margin < 1 < step(0.6 + 1e-5, 0.5).margin
    q = (0.4, 0.5, 0.1)  # residual (.1, 0, .1)
    assert step(0.9, 0.5 + 1e-8, q).margin < 1 < step(0.9, 0.5 + 1e-4, q).margin
    assert step(0.3, 0.5 + 1e-8).margin < 1 < step(0.3, 0.51).margin  # the bonus row's edge is at .5


def test_margin_sees_a_nucleus_that_hangs_on_a_rounding():
    z = ln(0.5, 0.3, 0.2)[None]
    u = torch.tensor([[0.2]], dtype=torch.float64)
    near, far = (banded.sample(Rows(z, top_p=top_p), uniforms=u).margin for top_p in (0.8, 0.79))
    assert near < 1 < far


def test_nothing_is_rounded_on_probability_rows():
    """Probability rows are not rounded: with two float32 rows, an acceptance one ulp from its edge is still decided."""
    p, q = torch.tensor([[[0.25, 0.75]] * 2]), torch.tensor([[[0.5, 0.5]]])
    for u, accepted in ((0.5 - 2.0**-53, 1), (0.5, 0)):
        uniforms = torch.tensor([[u, 0.3]], dtype=torch.float64)
        sides = Rows(p, kind="probs"), torch.tensor([[0]]), Rows(q, kind="probs")
        out = banded.verify_chain(*sides, uniforms=uniforms)
        assert out.num_accepted.tolist() == [accepted] and out.margin > 1


def test_it_refuses_what_it_does_not_have():
    with pytest.raises(ValueError, match="verify_chain: method must be 'token', 'block' or 'race', got 'tree'"):
        reference.verify_chain(torch.zeros(1, 2, 3), torch.zeros(1, 1, dtype=torch.int64), method="tree")
