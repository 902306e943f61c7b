# SPDX-License-Identifier: Apache-2.0
"""The reference's sparse draft rows (with ids) and mapped ones (with a vocab_map), against numbers computed by hand."""

import math

import numpy as np
import pytest
import torch

import specdec_kernels as sk
from specdec_kernels import reference
from specdec_kernels.reference import banded
from specdec_kernels.reference.kseq_rho import laws
from specdec_kernels.rows import Rows

Z = (2.0, 1.0, 0.5, -0.5, 0.0)
IDS, SCORES = (3, 1, 3), (0.0, 0.5, 1.0)
MAP = sk.vocab_map(torch.tensor([4, -1, 0, 2, 2]), 5)


def sparse(scores=SCORES, ids=IDS, **fields):
    return Rows(torch.tensor([scores]), ids=torch.tensor([ids]), **fields)


def mapped(z=Z, **fields):
    return Rows(torch.tensor([z]), vocab_map=MAP, **fields)


def q_of(rows):
    """Return the distribution of a single row over target ids."""
    [law] = laws("row_gap", torch.tensor([Z]), rows)[1]
    assert law.valid
    np.testing.assert_allclose(np.exp([law.log(v) for v in range(len(law.p))]), law.p, rtol=1e-12)
    return law.p


def seen(rows):
    """Return the distribution of a row over target ids, with its views applied."""
    return q_of(reference.views.seen_rows(reference.rows.rows_of(rows, draft=True), 1))


def norm(*w):
    return np.array(w) / sum(w)


@pytest.mark.parametrize(
    "rows, q",
    [
        (sparse(), (0, 0.307195885718, 0, 0.692804114282)),
        (mapped(), (0.154892292308, 0, 0.150928614174, 0, 0.694179093517)),
        (mapped(top_k=2), (0.182425523806, 0, 0, 0, 0.817574476194)),
    ],
)
def test_goldens(rows, q):
    assert np.abs(q_of(rows) - q).max() < 1e-12


E = math.exp


@pytest.mark.parametrize(
    "rows, q",
    [
        (sparse(ids=(3, -1, 3)), (0, 0, 0, 1)),
        (sparse((0.0, math.nan, math.inf, 1.0), (2, -1, -7, 0)), norm(E(1), 0, 1)),  # a pad hides anything
        (sparse(ids=(3, 1 << 24, 0)), norm(E(1), 0, 0, 1)),  # beyond the largest id: a pad too
        (sparse((1.0, -math.inf, 1.0), (0, 0, 1)), (0.5, 0.5)),
        (sparse(top_k=2), norm(0, E(0.5), 0, E(1))),  # top-k counts entries
        (sparse(top_k=3), norm(0, E(0.5), 0, 1 + E(1))),  # k equals the number of entries: off
        (sparse(min_p=0.5), norm(0, E(0.5), 0, E(1))),  # .37 and .61 of the largest entry, not of an id's sum
        (sparse(temperature=0.5), norm(0, E(1), 0, 1 + E(2))),
        (sparse(temperature=0.0), (0, 0, 0, 1)),
        (sparse((2.0, 2.0, 2.0), (4, 1, 1), temperature=0.0), (0, 0, 0, 0, 1)),  # the first of equal entries
        (sparse((0.3, 0.2, 0.4), kind="probs"), (0, 0.2, 0, 0.7)),  # not normalised
        (sparse((0.3, -0.2, 0.4), (3, 3, 1), kind="probs"), (0, 0.4, 0, 0.3)),  # a negative one counts as 0
        (sparse((0.3, math.nan, 0.4), (3, -1, 1), kind="probs"), (0, 0.4, 0, 0.3)),
        (Rows(torch.tensor([[0.0, 0.5, 1.0]]), ids=torch.tensor([[0, 1, 4]]), vocab_map=MAP), norm(0, 0, E(1), 0, 1)),
        (Rows(torch.tensor([[0.0, 0.5, 1.0]]), ids=torch.tensor([[3, 5, -1]]), vocab_map=MAP), (0, 0, 1)),
    ],
)
def test_q_by_hand(rows, q):
    np.testing.assert_allclose(q_of(rows), q, rtol=1e-6, atol=0)  # scores are float32, and so are cutoffs


def test_views_see_the_target_id():
    bias = sk.Bias(torch.tensor([[3, 7, -1]]), torch.tensor([[-1.0, 5.0, 9.0]]))
    ids, counts = sk.history([[1]], [[3]], size=2)
    penalties = sk.Penalties(2.0, 0.5, 0.25, ids, counts, drafted=torch.tensor([[3, 7, -1]]))
    allowed = sk.Allowed(torch.tensor([[0b1010]], dtype=torch.int32))
    both = (0.0 - 1.25, 0.25, 0.5 - 1.25)  # 3: counted twice; 1: in the prompt only
    for view, e in (({"bias": bias}, (-1, 0.5, 0)), ({"penalties": penalties}, both), ({"allowed": allowed}, SCORES)):
        np.testing.assert_allclose(seen(sparse(**view)), norm(0, E(e[1]), 0, E(e[0]) + E(e[2])), rtol=1e-6)
    without_3 = sk.Allowed(torch.tensor([[0b0010]], dtype=torch.int32))
    assert seen(sparse(allowed=without_3)).tolist() == [0, 1, 0, 0]
    z = (Z[0] + 0.5, *Z[1:])  # on draft id 0, whose target id is 4
    bias = sk.Bias(torch.tensor([[4, 1]]), torch.tensor([[0.5, 9.0]]))
    np.testing.assert_allclose(seen(mapped(bias=bias)), q_of(mapped(z)), rtol=1e-6)


def test_stats_are_those_of_the_entries():
    want = (1.0, -3.4028234663852886e38, math.log(E(-1) + E(-0.5) + 1), 1.0)
    np.testing.assert_allclose(reference.row_stats(sparse())[0], want, rtol=1e-12)
    assert reference.row_stats(sparse(temperature=0.0)).tolist() == [[math.inf, 1.0, 3.0, 1.0]]
    assert reference.row_stats(mapped(temperature=0.0)).tolist() == [[math.inf, 2.0, 4.0, 2.0]]
    stats = reference.row_stats(sparse(temperature=0.0))
    assert q_of(sparse(stats=stats)).tolist() == [0, 0, 0, 1]


def test_draws_go_through_the_entries_in_their_order():
    """Entries 3, 1, 3 weigh .186, .307 and .507, so the edges lie at .186 and .493."""
    uniforms = torch.tensor([[0.18, 0.19, 0.49, 0.5, 0.99]], dtype=torch.float64)
    out = banded.sample(sparse(), 5, uniforms=uniforms)
    assert out.tokens.tolist() == [[3, 1, 1, 3, 3]] and out.margin > 1
    q = {1: 0.307195885718, 3: 0.692804114282}
    assert np.abs(out.logprobs[0].exp().numpy() - [q[x] for x in out.tokens[0].tolist()]).max() < 1e-12
    out = reference.sample(sparse(), 3, replacement=False, uniforms=uniforms[:, :3])
    assert out.tokens.tolist() == [[3, 1, -1]]  # all entries of id 3 are taken out
    assert out.rows.ids.tolist() == [list(IDS)]
    out = reference.sample(sparse(temperature=0.0), 2, replacement=False)
    assert out.tokens.tolist() == [[3, -1]] and out.logprobs[0, 0] == 0


@pytest.mark.parametrize(
    "scores, ids, token",
    [
        ((math.nan, 0.5, 1.0), (3, 1, 7), 7),
        ((math.nan, math.inf, -math.inf), (3, 1, 7), 0),
        ((-math.inf, -math.inf, 2.0), (3, 1, -1), 0),
    ],
)
def test_an_invalid_row(scores, ids, token):
    out = reference.sample(sparse(scores, ids), uniforms=torch.tensor([[0.5]], dtype=torch.float64))
    assert out.tokens.tolist() == [[token]] and out.logprobs.isnan().all()


def step(q, drafted, u, v, **rule):
    """Verify one draft against p = (.5, .3, .2)."""
    p = torch.tensor([[[0.5, 0.3, 0.2]] * 2]).log()
    rows = Rows(torch.tensor([[q[1]]]), ids=torch.tensor([[q[0]]]), kind="probs")
    uniforms = torch.tensor([[u, v]], dtype=torch.float64)
    out = banded.verify_chain(p, torch.tensor([[drafted]]), rows, uniforms=uniforms, **rule)
    assert out.margin > 1
    return out.tokens[0].tolist(), out.status.item()


def test_steps_by_hand():
    """Draft 1 has q = .3 + .3 and p = .3, so it is accepted below u = .5. The residual is (.1, 0, .2)."""
    q = [1, 0, 1], [0.3, 0.4, 0.3]
    assert step(q, 1, 0.49, 0.6)[0] == [1, 1]
    assert step(q, 1, 0.51, 0.3) == ([0, -1], 0) and step(q, 1, 0.51, 0.35) == ([2, -1], 0)
    for unlisted in (2, 5, (1 << 24) - 1):  # q = 0: rejected, and drawn from the residual
        assert step(q, unlisted, 0.0, 0.3) == ([0, -1], sk.STATUS_INVALID_DRAFT)
        assert step(q, unlisted, 0.0, 0.35) == ([2, -1], sk.STATUS_INVALID_DRAFT)
    for ends in (-1, 1 << 24):  # no draft: the next token is drawn from p
        assert step(q, ends, 0.0, 0.7) == ([1, -1], 0)
    far = [1, 0, 90_000], [0.3, 0.4, 0.3]  # beyond the target's ids
    assert step(far, 90_000, 0.0, 0.3) == ([0, -1], 0)  # residual (.1, 0, .2)


def test_rules_use_the_sums():
    """Rules use the sum of the entries of an id. Here max q = .6, from two entries of .3, so chow keeps q iff .6 >= 1 -
    alpha. It then accepts every draft."""
    q = [1, 0, 1], [0.3, 0.4, 0.3]
    assert step(q, 1, 0.9, 0.1, rule="chow", alpha=0.45)[0][0] == 1
    assert step(q, 1, 0.9, 0.1, rule="chow", alpha=0.35)[0] == [0, -1]
    assert step(q, 1, 0.9, 0.1, rule="token_v1", alpha=0.0)[0][0] == 1  # q1(1) = .6 >= max p1 = .5
    [gap] = reference.row_gap(
        Rows(torch.tensor([[0.5, 0.3, 0.2]]), kind="probs"), sparse((0.3, 0.4, 0.3), (1, 0, 1), kind="probs")
    ).tolist()
    h = -0.6 * math.log(0.6) - 0.4 * math.log(0.4)
    np.testing.assert_allclose(gap[:2] + gap[3:4] + gap[5:], (0.3, 0.7, h, 0.6), rtol=1e-6)


def test_only_draft_rows_are_sparse():
    for call in (
        lambda: reference.verify_chain(sparse(), torch.tensor([[1]])),
        lambda: reference.row_gap(sparse(), torch.tensor([Z])),
        lambda: reference.support(mapped(), 3),
        lambda: reference.top_logprobs(sparse(), 1),
        lambda: reference.row_topw(mapped(), torch.zeros(1), 1),
    ):
        with pytest.raises(NotImplementedError, match="ids are served on draft rows only"):
            call()
