# SPDX-License-Identifier: Apache-2.0
"""Degenerate data: each case has a defined result and status bit, and does not change the other requests."""

import math

import pytest
import torch
from support import backends, cases, checks
from support.checks import ALMOST_ONE, ln

NAN, INF = math.nan, math.inf
P, Q = (0.5, 0.3, 0.2), (0.2, 0.5, 0.3)


def u64(*rows):
    return torch.tensor(rows, dtype=torch.float64)


@pytest.fixture
def one(backend):
    """Verify one golden step [V = 3, G = 1] between two other requests, whose results must not change."""
    verify, without = backends.call("verify_chain", backend), {}

    def step(p=P, q=Q, d=1, u=0.5, v=0.6, bonus_row=P, **kwargs):
        probs = kwargs.get("target_kind") == "probs", kwargs.get("draft_kind") == "probs"

        def rows(values, as_probs):
            return (
                torch.tensor(values, dtype=torch.float32)
                if as_probs
                else values
                if torch.is_tensor(values)
                else ln(*values)
            )

        def call(p, q, d, u, v, bonus_row):
            draft = None if q[0] is None else torch.stack([rows(x, probs[1]) for x in q])[:, None]
            return verify(
                torch.stack([torch.stack([rows(a, probs[0]), rows(b, probs[0])]) for a, b in zip(p, bonus_row)]),
                torch.tensor(d)[:, None],
                draft,
                uniforms=u64(*zip(u, v)),
                **kwargs,
            )

        neighbour = None if q is None else Q
        out = call([P, p, P], [neighbour, q, neighbour], [1, d, 2], [0.5, u, 0.9], [0.6, v, 0.1], [P, bonus_row, P])
        form = (q is None, *sorted(kwargs.items()))  # many steps of a test share the same neighbours
        if form not in without:
            without[form] = call([P, P], [neighbour, neighbour], [1, 2], [0.5, 0.9], [0.6, 0.1], [P, P])
        for got, want in zip(out[:4], without[form][:4]):
            assert torch.equal(got[[0, 2]], want)
        assert (out.status[[0, 2]] == 0).all()
        return out.tokens[1].tolist(), int(out.num_accepted[1]), int(out.status[1]), out.logprobs[1]

    return step


BAD_Q = [0.0, -0.25, NAN, INF, -INF, 1.0011, 2.0]


@pytest.mark.parametrize("u", [0.0, 0.5, ALMOST_ONE])
@pytest.mark.parametrize("q_d", BAD_Q)
def test_q_of_the_draft_is_no_probability(one, q_d, u):
    """The draft is rejected for any u. Its q counts as 0 in the residual, here (.3, .3, 0), so v below .5 gives id 0,
    and v above .5 gives id 1."""
    for v, token in ((0.49, 0), (0.51, 1)):
        tokens, n, status, _ = one(q=(0.2, q_d, 0.8), u=u, v=v, draft_kind="probs")
        assert (tokens, n, status) == ([token, -1], 0, 4)


@pytest.mark.parametrize("q_other", BAD_Q[1:])
def test_another_q_is_no_probability(one, q_other):
    """An invalid q of another id counts as 0. After draft 1 the residual is (.5, 0, .1), so v below 5/6 gives id 0."""
    for v, token in ((0.83, 0), (0.84, 2)):
        tokens, n, status, _ = one(q=(q_other, 0.5, 0.1), u=0.9, v=v, draft_kind="probs")
        assert (tokens, n, status) == ([token, -1], 0, 0)


def test_q_of_a_rounded_one(one):
    """1 < q <= 1 + 1e-3 counts as 1. Draft 1 is then accepted below u = p = .3, and id 1 has no residual."""
    for u, accepted in ((0.2999, 1), (0.3001, 0)):
        tokens, n, status, _ = one(q=(0.0, 1.0008, 0.0), u=u, v=0.999, draft_kind="probs")
        assert n == accepted and status == 0
        assert tokens == ([1, 2] if accepted else [2, -1])


def test_q_zero_from_logits(one):
    tokens, n, status, _ = one(q=(0.6, 0.0, 0.4), u=0.0, v=0.5)
    assert (tokens, n, status) == ([1, -1], 0, 4)


@pytest.mark.parametrize("u", [0.0, 1e-300, 0.5])
def test_p_of_the_draft_is_zero(one, u):
    tokens, n, status, _ = one(p=(0.6, 0.0, 0.4), u=u, v=0.99)
    assert n == 0 and tokens[0] in (0, 2) and status == 0


def test_empty_residual_draws_from_p(one):
    """q covers p everywhere and p of the draft is 0: the residual is empty, so the final draw is from p."""
    for v, token in ((0.59, 0), (0.61, 2)):
        tokens, n, status, _ = one(
            p=(0.6, 0.0, 0.4), q=(0.6, 0.0, 0.4), d=1, u=0.0, v=v, target_kind="probs", draft_kind="probs"
        )
        assert (tokens, n) == ([token, -1], 0)
        assert status == 2 | 4


def test_empty_residual_of_a_one_hot_draft(one):
    """p has mass at the draft token only, but u q < p fails. This can happen only if the row sums to less than 1."""
    tokens, n, status, _ = one(p=(0.0, 0.9, 0.0), q=None, d=1, u=0.95, v=0.5, target_kind="probs")
    assert (tokens, n, status) == ([1, -1], 0, 2)


def test_one_hot_draft(one):
    """A one-hot draft d is accepted with probability p(d). Otherwise the final draw is from p without d."""
    for u, v, want in ((0.29, 0.9, [1, 2]), (0.31, 0.71, [0, -1]), (0.31, 0.72, [2, -1])):
        tokens, n, status, _ = one(q=None, u=u, v=v)
        assert tokens == want and status == 0


@pytest.mark.parametrize("d", [-1, -(2**62), 3, 2**62])
def test_an_id_outside_ends_the_draft(one, d):
    """An id outside the vocabulary ends the draft. The final draw is then from row 0 of p, whatever q is."""
    for v, token in ((0.49, 0), (0.51, 1), (0.81, 2)):
        tokens, n, status, logprobs = one(d=d, u=0.0, v=v)
        assert (tokens, n, status) == ([token, -1], 0, 0)
        assert logprobs[0].item() == pytest.approx(math.log(P[token]), abs=1e-6)


INVALID = [
    ([NAN, 1.0, 2.0], 2),
    ([3.0, NAN, 2.0], 0),
    ([0.0, INF, 2.0], 2),
    ([-INF, -INF, -INF], 0),
    ([NAN, NAN, NAN], 0),
    ([INF, NAN, -INF], 0),
]


@pytest.mark.parametrize("temperature", [None, 0.0])
@pytest.mark.parametrize("row, argmax", INVALID)
def test_invalid_target_row_where_a_draft_is_tested(one, row, argmax, temperature):
    for d in range(3):
        tokens, n, status, logprobs = one(p=torch.tensor(row), d=d, u=0.0, temperature=temperature)
        assert (tokens, n, status) == ([argmax, -1], 0, 1) and logprobs[0].isnan()


@pytest.mark.parametrize("row, argmax", INVALID)
def test_invalid_bonus_row(one, row, argmax):
    tokens, n, status, logprobs = one(d=0, u=0.5, bonus_row=torch.tensor(row))
    assert (tokens, n, status) == ([0, argmax], 1, 1)
    assert logprobs[1].isnan() and logprobs[0].item() == pytest.approx(math.log(0.5), abs=1e-6)


def test_rows_behind_the_stop_are_not_read(one):
    tokens, n, status, _ = one(u=0.9, bonus_row=torch.full((3,), NAN))
    assert (tokens, n, status) == ([0, -1], 0, 0)


@pytest.mark.parametrize("row", [row for row, _ in INVALID])
def test_invalid_draft_row(one, row):
    """A draft from an invalid row is rejected, with status bits 1 and 4. Its q counts as 0 everywhere, so the final
    draw is from p."""
    for v, token in ((0.49, 0), (0.51, 1), (0.81, 2)):
        tokens, n, status, _ = one(q=torch.tensor(row), u=0.0, v=v)
        assert (tokens, n, status) == ([token, -1], 0, 1 | 4)


@pytest.mark.parametrize("row, argmax", [((NAN, 0.3, 0.7), 2), ((0.1, 0.3, INF), 1), ((0.0, 0.0, 0.0), 0)])
def test_invalid_probability_row(one, row, argmax):
    """A test of one draft reads only its p. The row is found invalid when it is read whole, here after the rejection of
    draft 1."""
    tokens, n, status, logprobs = one(p=row, d=1, u=0.99, target_kind="probs", q=(0.2, 0.5, 0.3), draft_kind="probs")
    assert (tokens, n, status) == ([argmax, -1], 0, 1) and logprobs[0].isnan()


def test_nan_probability_of_the_draft(one):
    tokens, n, status, logprobs = one(p=(0.4, NAN, 0.6), d=1, u=0.0, target_kind="probs", draft_kind="probs")
    assert (tokens, n, status) == ([2, -1], 0, 1) and logprobs[0].isnan()


@pytest.mark.parametrize("v", [0.0, 0.5, ALMOST_ONE])
def test_the_ends_of_the_unit_interval(one, v):
    """u = 0 accepts every draft with p > 0. u = 1 - 2^-53 accepts where p >= q. No v draws an id without mass."""
    assert one(p=(0.5, 0.5, 0.0), d=1, u=0.0, v=v)[1] == 1
    assert (
        one(p=(0.5, 0.5, 0.0), q=(0.3, 0.5, 0.2), d=1, u=ALMOST_ONE, v=v, target_kind="probs", draft_kind="probs")[1]
        == 1
    )
    tokens, n, _, _ = one(p=(0.0, 1.0, 0.0), q=(0.2, 0.0, 0.8), d=2, u=0.0, v=v)
    assert (tokens, n) == ([1, -1], 0)
    tokens, n, _, _ = one(d=0, u=0.0, v=v, bonus_row=(0.0, 1.0, 0.0))
    assert (tokens, n) == ([0, 1], 1)


def test_logprob_of_an_impossible_token(backend):
    """A draft with p = 0 is never emitted. Every emitted token of a valid row has a finite logprob."""
    args = cases.chain(13, backends.scale(300, backend), 3, 15, kinds=["zeros", "disjoint", "onehot"], filtered=True)
    out = backends.run("verify_chain", backend, **args)
    emitted = out.tokens >= 0
    assert out.logprobs[emitted].isfinite().all()
    assert (out.logprobs[~emitted] == 0).all()


def test_pads_and_counts(backend):
    args = cases.chain(14, backends.scale(300, backend), 4, 15)
    out = backends.run("verify_chain", backend, **args)
    position = torch.arange(5)[None]
    assert ((out.tokens >= 0) == (position <= out.num_accepted[:, None])).all()
    assert (out.tokens < 15).all()
    taken = position[:, :4] < out.num_accepted[:, None]
    assert torch.equal(out.tokens[:, :4][taken], args["draft_tokens"][taken])


def test_every_request_bad_in_its_own_way(backend):
    """Every second request has an invalid row, of different kinds, on either side. Results agree with the reference,
    and tokens lie in [0, V)."""
    B = backends.scale(256, backend, least=48)
    args = cases.chain(15, B, 3, 19, filtered=True)
    bad = cases.bad_rows(19)
    for b in range(0, B, 2):
        side = args["target_logits"] if b % 4 else args["draft_logits"]
        side[b, (b // 4) % 3] = bad[b % len(bad)][0]
    ref = checks.reference_verify(**args)
    assert {int(s) for s in ref.status} >= {0, 1, 5}
    out = backends.run("verify_chain", backend, **args)
    checks.assert_same_tokens(out, ref)
    assert ((out.tokens >= -1) & (out.tokens < 19)).all() and (out.tokens[:, 0] >= 0).all()


@pytest.mark.parametrize("B, G, V", [(0, 3, 7), (0, 0, 1), (5, 0, 7), (5, 0, 1), (5, 2, 1)])
def test_empty_and_smallest(backend, B, G, V):
    u = torch.rand(B, G + 1, dtype=torch.float64)
    draft = torch.zeros(B, G, dtype=torch.int64)
    for q in (None, torch.zeros(B, G, V)):
        out = backends.run("verify_chain", backend, torch.zeros(B, G + 1, V), draft, q, uniforms=u)
        assert out.tokens.shape == (B, G + 1) and out.logprobs.shape == (B, G + 1)
        if V == 1:
            assert (out.tokens == 0).all() and (out.num_accepted == G).all() and (out.status == 0).all()
    out = backends.run(
        "verify_chain",
        backend,
        torch.zeros(0, V),
        torch.zeros(0, dtype=torch.int64),
        None,
        cu_draft=torch.zeros(1, dtype=torch.int64),
        max_draft=G,
        uniforms=u[:0],
    )
    assert out.tokens.shape == (0, G + 1)
