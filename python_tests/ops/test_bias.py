# SPDX-License-Identifier: Apache-2.0
"""Biases: results computed by hand, and errors. Random calls: test_views.py."""

import math

import numpy as np
import pytest
import torch
from support import backends, tiers
from support.viewed import FLAT, OPS, differ, of_three

import specdec_kernels as sk
from specdec_kernels.reference.penalties import History, penalised
from specdec_kernels.reference.views import biased, unseen
from specdec_kernels.rows import Rows

Z = (2.0, 1.0, 0.5, -0.5, 0.0)


def lists(*entries, row=None):
    """Return a Bias with these lists of (id, value)."""
    most = max(map(len, entries))
    full = [[*x, *[(-1, 0.0)] * (most - len(x))] for x in entries]
    ids, values = ([[pair[i] for pair in x] for x in full] for i in range(2))
    return sk.Bias(
        torch.tensor(ids, dtype=torch.int64).reshape(len(entries), most),
        torch.tensor(values, dtype=torch.float32).reshape(len(entries), most),
        None if row is None else torch.tensor(row),
    )


def laws(rows):
    """Return the probabilities of rows, as given by top_logprobs."""
    V = rows.logits.size(1)
    out = sk.top_logprobs(rows, k=V)
    return torch.zeros(len(rows.logits), V).scatter(1, out.ids, out.logprobs.exp())


def test_golden():
    """A bias of -1 on id 0 and +2 on id 4, then penalties (repetition 1.3, frequency .5, presence 1.5) with draft
    tokens 1, 2, 1 counted."""
    ids, counts = sk.history([[3]], [[0, 0, 2]], size=4)
    penalties = sk.Penalties(1.3, 0.5, 1.5, ids, counts, drafted=torch.tensor([[1, 2, 1]]))
    want = (0.021124303312, 0.021124303312, 0.014379575170, 0.062252171865, 0.881119646341)
    rows = Rows(torch.tensor([Z]), penalties=penalties, bias=lists([(0, -1.0), (4, 2.0)]))
    assert (laws(rows)[0] - torch.tensor(want)).abs().max() < 2e-6
    history = History.of_list([0, 2, 3], [2, 1, 0], 5).after([1, 2, 1])
    e = penalised(biased(np.array(Z), [0, 4], [-1.0, 2.0]), history, 1.3, 0.5, 1.5)
    assert np.abs(np.exp(e) / np.exp(e).sum() - want).max() < 1e-12


def test_each_sum_is_rounded_and_the_list_keeps_its_order():
    """In float32, 1 + 2^-24 rounds to 1, so two such entries added one after the other leave 1. Their sum, 2^-23, would
    reach the next float."""
    tiny, z = 2.0**-24, torch.tensor([[1.0, 0.0]])
    for bias, want in (
        (lists([(0, tiny), (0, tiny)]), 1.0),
        (lists([(0, 2 * tiny)]), 1.0 + 2 * tiny),
        (lists([(0, 2.0**25), (0, 1.0), (0, -(2.0**25))]), 0.0),  # 2^25 + 1 rounds to 2^25
        (lists([(0, 1.0), (0, 2.0**25), (0, -(2.0**25))]), 0.0),
        (lists([(0, -1.0), (0, 2.0**25), (0, -(2.0**25))]), 0.0),
        (lists([(0, 2.0**25), (0, -(2.0**25)), (0, -0.75)]), -0.75),
    ):
        assert max(want, 0.0) == sk.row_stats(Rows(z, bias=bias))[0, 3].item(), bias


def test_forbidden_ids():
    """Minus infinity forbids an id. A row with every id forbidden is invalid, like a row of minus infinities."""
    z = torch.tensor([Z, Z, Z])
    bias = lists([(0, -math.inf), (1, -math.inf)], [(4, -math.inf)], [(v, -math.inf) for v in range(5)])
    found = laws(Rows(z, bias=bias))
    assert found[0, :2].tolist() == [0, 0] and found[1, 4] == 0
    torch.testing.assert_close(found[:2].sum(1), torch.ones(2))
    assert sk.row_stats(Rows(z, bias=bias))[:, 2].isnan().tolist() == [False, False, True]
    assert sk.sample(Rows(z, temperature=0.0, bias=bias)).tokens[:2].tolist() == [[2], [0]]


def test_what_stands_at_a_pad_is_not_used():
    z, bias = torch.tensor([Z]), sk.Bias(torch.tensor([[-1, 1, -1]]), torch.tensor([[math.nan, 0.5, math.inf]]))
    assert torch.equal(sk.row_stats(Rows(z, bias=bias)), sk.row_stats(Rows(z, bias=lists([(1, 0.5)]))))


@pytest.mark.parametrize("method", ["token", "block"])
def test_every_position_has_its_list(method):
    """Greedy rows. In request 0, the lists of positions 0 and 1 make the draft token the argmax, and that of position 2
    forbids it. A row index of -1 means no list."""
    row = [[0, 1, 2, -1], [-1, 0, -1, 0]]
    bias = lists([(1, 9.0)], [(2, 9.0)], [(3, -math.inf), (4, 9.0)], row=row)
    target = Rows(torch.tensor([Z]).expand(2, 4, 5), temperature=0.0, bias=bias)
    out = sk.verify_chain(target, torch.tensor([[1, 2, 3], [0, 1, 0]]), method=method)
    assert out.tokens.tolist() == [[1, 2, 4, -1], [0, 1, 0, 1]]
    flat, rows = torch.tensor([1, 2, 3, 0, 1, 0]), target.logits.flatten(0, 1)
    bias = bias._replace(row=bias.row.flatten())
    ragged = target._replace(logits=rows, bias=bias)
    found = sk.verify_chain(ragged, flat, cu_draft=torch.tensor([0, 3, 6]), max_draft=3, method=method)
    assert not differ(out, found)
    named = bias.row.clamp(min=0)
    unnamed = sk.Bias(bias.ids[named], bias.values[named].where(bias.row[:, None] >= 0, 0.0))
    for rows, more in ((target, {}), (ragged, {"cu_draft": torch.tensor([0, 3, 6]), "max_draft": 3})):
        drafts = flat if more else flat.view(2, 3)
        assert not differ(out, sk.verify_chain(rows._replace(bias=unnamed), drafts, method=method, **more))


def test_every_node_has_its_list():
    tree = torch.tensor([[-1, 0, 0, 2]]), torch.tensor([[-1, 1, 2, 3]])
    bias = lists([(2, 9.0)], [(3, 9.0)], [(4, 9.0)], row=[[0, -1, 1, 2]])
    target = Rows(torch.tensor([Z]).expand(1, 4, 5), temperature=0.0, bias=bias)
    for method in ("greedy", "recursive", "traversal", "target_only"):
        out = sk.verify_tree(tree, target, method=method)
        assert out.tokens[0, :3].tolist() == [2, 3, 4], method


def test_two_positions_of_one_row_are_two_rows():
    """All positions read one stored row, each with a different list. An op that caches sums by the stored row alone
    would reuse those of position 0."""
    bias = lists(*[[(i, -30.0)] for i in range(4)])
    rows = Rows(torch.zeros(1, 4), row=torch.zeros(1, 4, dtype=torch.int64), bias=bias)
    uniforms = torch.tensor([[0.0, 0.0, 0.0, 0.5]], dtype=torch.float64)
    for method in ("token", "block"):
        out = sk.verify_chain(rows, torch.tensor([[1, 2, 3]]), method=method, uniforms=uniforms)
        assert out.tokens.tolist() == [[1, 2, 3, 1]], method
        torch.testing.assert_close(out.logprobs, torch.full((1, 4), -math.log(3)), rtol=0, atol=1e-6)


def call_with(op, **fields):
    """Return a call of three rows or requests whose bias has these fields."""
    given = sk.Bias(IDS, VALUES)._replace(**fields)
    return of_three(op, bias=given)


IDS, VALUES = torch.tensor([[0, 3, -1], [7, 2, 7], [-1, -1, -1]]), torch.tensor([[1.0, -math.inf, 0.0]] * 3)
WRONG = [
    ({"ids": IDS.short()}, "ids must be int32 or int64, got int16"),
    ({"ids": IDS[0]}, r"ids must have shape \[S, I\], got \[3\]"),
    ({"ids": IDS - 1}, "ids must be >= -1, got -2 in list 0"),
    ({"values": VALUES[:, :2]}, r"values must have shape \[S=3, I=3\], got \[3, 2\]"),
    ({"values": VALUES.double()}, "values must be float32, got float64"),
    ({"values": VALUES.T.contiguous().T}, r"values must be contiguous in its last dimension, got strides \[1, 3\]"),
    ({"values": VALUES * 0}, "values must be finite or -inf, got -?nan in list 0"),
    ({"values": -VALUES}, "values must be finite or -inf, got inf in list 0"),
    ({"values": None}, "ids and values must be given with a bias, got ids alone"),
    ({"ids": None}, "ids and values must be given with a bias, got values alone"),
    ({"row": torch.tensor([0, 3, 0])}, r"row must be in \[-1, 3\), got 3 of request 1"),
    (
        {"ids": IDS[:, :0], "values": VALUES[:, :0], "row": torch.tensor([0, 3, 0])},
        r"row must be in \[-1, 3\), got 3 of request 1",
    ),
    ({"row": torch.tensor([0, 1, -2])}, r"row must be in \[-1, 3\), got -2 of request 2"),
    ({"row": torch.tensor([0.0, 1.0, 2.0])}, "row must be int32 or int64, got float32"),
]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("fields, says", WRONG)
def test_what_is_wrong_is_named(op, fields, says):
    side = "rows" if op in FLAT else "target"
    with pytest.raises(ValueError, match=rf"^{op}: {side}\.bias\.{says}"):
        getattr(sk, op)(**call_with(op, **fields))


@pytest.mark.parametrize("op", OPS)
def test_other_errors(op):
    call, side = call_with(op), "rows" if op in FLAT else "target"
    with pytest.raises(TypeError, match=rf"^{op}: {side}\.bias must be Bias, got tuple"):
        getattr(sk, op)(**call | {side: call[side]._replace(bias=(IDS, VALUES))})
    positions = {"verify_chain": (r", or 6", r" or \[B, G\+1\]"), "verify_tree": (r", or 6", r" or \[B, N\]")}
    of_lists, of_rows = positions.get(op, ("", ""))
    wanted = rf"must be of 3 lists{of_lists}, or bias.row be given, got 2"
    with pytest.raises(ValueError, match=rf"^{op}: {side}\.bias\.ids {wanted}"):
        getattr(sk, op)(**call_with(op, ids=IDS[:2], values=VALUES[:2]))
    with pytest.raises(ValueError, match=rf"^{op}: {side}\.bias\.row must have shape \[3\]{of_rows}, got \[2\]"):
        getattr(sk, op)(**call_with(op, row=torch.tensor([0, 1])))


def test_a_ragged_call_names_its_positions():
    bias = sk.Bias(IDS[:1], VALUES[:1], torch.tensor([0, 0]))
    call = {"draft_tokens": torch.tensor([1, 2]), "cu_draft": torch.tensor([0, 1, 2, 2]), "max_draft": 1}
    target = Rows(torch.zeros(5, 9), temperature=0.0, bias=bias)
    with pytest.raises(ValueError, match=r"^verify_chain: target.bias.row must have shape \[3\] or \[R\], got \[2\]"):
        sk.verify_chain(target, **call)


@pytest.mark.parametrize("backend", [name for name in backends.NAMES if name in tiers.SIMULATED])
@pytest.mark.parametrize("op", OPS)
def test_what_a_device_finds_wrong_makes_a_row_invalid(op, backend):
    """A GPU's tensors are not checked before the kernels run. Of three requests only the wrong one becomes invalid."""
    call = call_with(op)
    if op not in FLAT:
        call |= {"uniforms": torch.full((3, 2 if op == "verify_chain" else 3), 0.5, dtype=torch.float64)}
    side = "rows" if op in FLAT else "target"
    good = backends.run_without_values(op, backend, **call)
    nan, infinite = VALUES.clone(), VALUES.clone()
    nan[1], infinite[1] = math.nan, math.inf
    for fields in (
        {"row": torch.tensor([0, 3, 2])},
        {"row": torch.tensor([0, -2, 2])},
        {"values": nan},
        {"values": infinite},
    ):
        rows = call[side]._replace(bias=call[side].bias._replace(**fields))
        found = backends.run_without_values(op, backend, **call | {side: rows})
        bad = call[side].logits.clone()
        bad[1] = math.nan
        wanted = backends.run_without_values(op, backend, **call | {side: call[side]._replace(logits=bad)})
        if "values" in fields:  # equals a row of logits with this value
            bad[1] = 0
            bad[1, ..., [2, 7]] = fields["values"][1, 0].item()
            wanted = backends.run_without_values(op, backend, **call | {side: unseen(call[side], logits=bad)})
            stored = call[side].logits
            others = backends.run_without_values(op, backend, **call | {side: unseen(call[side], logits=stored)})
            assert differ(found, others), fields
            continue
        assert not differ(found, wanted), fields
        assert differ(found, good), fields
