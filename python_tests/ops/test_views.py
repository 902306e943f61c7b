# SPDX-License-Identifier: Apache-2.0
"""An op on rows with views (bias, penalties, masks) equals, bit for bit, the op on float32 rows with these applied."""

import pytest
import torch
from support import backends, tiers, viewed
from support.viewed import OPS, bare, differ, of_three

import specdec_kernels as sk
from specdec_kernels import example_calls, reference
from specdec_kernels.arguments import plain
from specdec_kernels.rows import Rows

CALLS = 600 if tiers.TIER == "all" else 200
FEWER = {"cuda-on-cpu": 10, "triton-interpret": 25}


@pytest.mark.parametrize("op", OPS)
def test_a_row_is_seen_as_if_written_out(op, isa_backend):
    calls = CALLS // FEWER.get(isa_backend, 1)
    wrong, changed = backends.there(isa_backend, viewed.compared, op, isa_backend, calls)
    assert wrong == []
    assert changed > calls / 8  # the views changed the results


@pytest.mark.parametrize("op", OPS)
def test_calls_that_are_compiled_ahead(op, op_backend):
    """The calls that support/aot.py compiles ahead of time equal the calls on rows with the views applied."""
    assert backends.there(op_backend, viewed.differs_ahead_of_time, op) == []


@pytest.mark.parametrize("op", OPS)
def test_the_reference_sees_the_same_rows(op):
    for i in range(40):
        seen, plain = viewed.call_of(op, i)
        found, wanted = (getattr(reference, op)(**x) for x in (seen, plain))
        assert not differ(found, wanted), (op, i)


@pytest.mark.parametrize("op", OPS)
def test_bad_data_gives_valid_tokens_or_an_error(op, op_backend):
    calls = CALLS // FEWER.get(op_backend, 4)
    served, refused = backends.there(op_backend, viewed.survived, op, op_backend, calls)
    assert served > calls / 10
    assert refused > calls / 10 or op_backend != "cpu"  # a GPU's tensors are not checked before it runs


def each_view():
    """Return a view of every kind, for three rows or requests."""
    ids = torch.tensor([[0, 3, -1], [1, 2, 3], [-1, -1, -1]], dtype=torch.int32)
    return {
        "penalties": sk.Penalties(1.3, ids=ids, counts=torch.zeros_like(ids)),
        "bias": sk.Bias(ids, torch.tensor([[1.0, -torch.inf, 0.0]] * 3)),
        "allowed": sk.Allowed(torch.tensor([[0b1001], [0b10000100], [0b111111111]], dtype=torch.int32)),
    }


@pytest.mark.parametrize("name", each_view())
def test_views_are_of_logits(name):
    call = of_three("verify_chain", **{name: each_view()[name]})
    probs = Rows(torch.full((3, 2, 9), 1 / 9), kind="probs", **{name: each_view()[name]})
    needs = "need" if name == "penalties" else "needs"
    with pytest.raises(ValueError, match=f"target.{name} {needs} target.kind='logits', got 'probs'"):
        sk.verify_chain(probs, call["draft_tokens"], seed=torch.zeros(3).long(), offset=torch.zeros(3).long())


@pytest.mark.parametrize("op", ["row_gap", "kseq_rho"])
@pytest.mark.parametrize("name", each_view())
def test_ops_on_pairs_refuse_them(name, op):
    view = each_view()[name]
    arguments = example_calls.calls(op)[0].arguments
    for side in sk.arguments.sides(op):
        x = arguments.get(side)
        if x is not None:
            rows = (x if isinstance(x, Rows) else Rows(x))._replace(**{name: view})
            says = rf"^{op}: {side}\.{name} must be None, got {type(view).__name__}$"
            with pytest.raises(ValueError, match=says):
                getattr(sk, op)(**arguments | {side: rows})
            with pytest.raises(NotImplementedError, match="views are not served on pairs of rows"):
                getattr(reference, op)(**arguments | {side: rows})


@pytest.mark.parametrize("name", each_view())
def test_stack_rows_refuses_them(name):
    view = each_view()[name]
    says = rf"^stack_rows: rows\[0\]\.{name} must be None, got {type(view).__name__}$"
    with pytest.raises(ValueError, match=says):
        sk.stack_rows([Rows(torch.zeros(3, 9), **{name: view})])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", each_view())
def test_fakes_and_graphs(name, op):
    call = of_three(op, **{name: each_view()[name]})
    given = example_calls.op_arguments(op, getattr(sk, op), **call)
    torch.library.opcheck(getattr(torch.ops.specdec, op).views, given)
    compiled = torch.compile(getattr(sk, op), fullgraph=True, backend="aot_eager")
    assert not differ(compiled(**call), getattr(sk, op)(**call))
    assert len(example_calls.op_arguments(op, getattr(sk, op), **bare(call))) <= len(plain(op))
