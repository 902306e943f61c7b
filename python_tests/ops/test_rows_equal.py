# SPDX-License-Identifier: Apache-2.0
"""Rows on every backend: a plain tensor equals Rows of it, given stats equal the parameters they were made with, and
the rows returned by sample go to verify_chain unchanged. torch.compile and torch.export take Rows. The calls are made
from the example calls."""

import inspect

import pytest
import torch
from support import backends, flat
from support.surface import same, tensors

import specdec_kernels as sk
from specdec_kernels import example_calls
from specdec_kernels.rows import Rows

CALLS = {op: [call.arguments for call in example_calls.calls(op)] for op in flat.SIDES}


def takes(op, field):
    return any(f"{side}.{field}" in example_calls.flat(call) for call in CALLS[op] for side in flat.SIDES[op])


def a_call(op, side):
    """Return an example call in which the side has logits without row indices, and no other field."""
    for call in CALLS[op]:
        rows = call.get(side)
        rows = Rows(rows) if isinstance(rows, torch.Tensor) else rows
        if rows is not None and rows.kind == "logits" and rows.row is None:
            return call | {side: Rows(rows.logits)}
    raise AssertionError(f"{op}: no example call has plain rows in {side}")


def plainly(op):
    """Yield pairs of calls: with plain tensors, and with Rows of them. If no example call of an op has a plain tensor,
    one is made."""
    sides = flat.SIDES[op]
    found = [call for call in CALLS[op] if any(isinstance(call.get(side), torch.Tensor) for side in sides)]
    for call in found or [a_call(op, side) | {side: a_call(op, side)[side].logits} for side in sides]:
        yield call, {name: Rows(x) if name in sides and isinstance(x, torch.Tensor) else x for name, x in call.items()}


@pytest.mark.parametrize("op", flat.SIDES)
@pytest.mark.slow_in_triton
def test_a_plain_tensor_is_its_rows(op_backend, op):
    pairs = list(plainly(op))
    assert pairs
    for plain, rows in [pair for pair in pairs if backends.serves(op_backend, op, pair[0])]:
        got, want = (backends.there(op_backend, backends.public, op, **call) for call in (rows, plain))
        assert same(tensors(got), tensors(want))


def parametrised(op):
    """Yield calls whose sides have different sampling parameters: one per row or one for all, also in padded
    buffers."""
    sides = flat.SIDES[op]
    call = a_call(op, [*sides][0])
    logits = [a_call(op, side)[side].logits for side in sides]
    (n,) = set(map(len, logits))
    each = example_calls.Inputs().filters(n)
    each = each, {name: x.flip(0) for name, x in each.items()}

    def of(*given, **fields):
        return call | {side: Rows(x, **its, **fields) for side, x, its in zip(sides, logits, given)}

    yield of(*each)
    yield of({"temperature": 0.7, "top_k": 5}, {"temperature": 1.3, "top_p": 0.8})
    yield of({"temperature": 0.0}, {"min_p": 0.1})
    if "num_rows" in inspect.signature(getattr(sk, op)).parameters:
        yield of(*each) | {"num_rows": torch.tensor([n - 1])}
    if takes(op, "row"):
        yield of(*each, row=torch.tensor([n - 1, 0]))


BY_STATS = [op for op, sides in flat.SIDES.items() if "target" not in sides and takes(op, "stats")]


@pytest.mark.parametrize("op", BY_STATS)
@pytest.mark.slow_in_triton
def test_stats_are_the_parameters_they_were_made_with(op_backend, op):
    def run(name, **call):
        return backends.there(op_backend, backends.public, name, **call)

    for call in parametrised(op):
        by_stats = dict(call)
        for side in flat.SIDES[op]:
            rows = call[side]
            stats = run("row_stats", rows=rows._replace(row=None))
            by_stats[side] = Rows(rows.logits, stats=stats, row=rows.row)
        assert same(tensors(run(op, **call)), tensors(run(op, **by_stats)))


# ---- a drafter's rows -----------------------------------------------------------------------------------------------

B, G = 4, 3


@pytest.mark.parametrize("method", ["token", "block"])
@pytest.mark.slow_in_triton
def test_verify_chain_takes_the_rows_of_sample(op_backend, method):
    """verify_chain gives the same results for the stacked rows of a drafter's steps, for the rows of one call of sample
    with row indices, and for logits with stats from row_stats."""

    def run(name, *args, **call):
        return backends.there(op_backend, backends.public, name, *args, **call)

    x = example_calls.Inputs(seed=3)
    filters, random = x.filters(B), x.random(B)
    target, draft = x.close_rows(B, G + 1)
    target, draft = Rows(target, **filters), draft[:, :G]
    steps = [run("sample", Rows(draft[:, i], **filters), 1, **random, slot=i) for i in range(G)]
    tokens = torch.cat([step.tokens for step in steps], 1)
    each = {name: value.repeat_interleave(G) for name, value in (filters | random).items()}
    of_each = Rows(draft.flatten(0, 1), **{name: each[name] for name in filters})
    slots = {name: each[name] for name in random} | {"slot": torch.arange(G).repeat(B)}
    at_once = run("sample", of_each, 1, **slots)
    assert torch.equal(at_once.tokens.view(B, G), tokens)

    stats = run("row_stats", of_each).view(B, G, 4)
    want = run("verify_chain", target, tokens, Rows(draft, stats=stats), method=method, **random)
    assert want.num_accepted.unique().numel() > 1
    numbered = at_once.rows._replace(row=torch.arange(B * G).view(B, G))
    for rows in (sk.stack_rows([step.rows for step in steps]), numbered, Rows(draft, **filters)):
        assert same(run("verify_chain", target, tokens, rows, method=method, **random), want)


# ---- compilers ------------------------------------------------------------------------------------------------------


class Drafter(torch.nn.Module):
    """Takes Rows, changes a field, and returns new Rows."""

    def forward(self, rows, seed, offset):
        out = sk.sample(rows._replace(min_p=None), 1, seed=seed, offset=offset)
        return out.rows, sk.stack_rows([out.rows, out.rows]), Rows(rows.logits, temperature=0.5, row=out.tokens[:, 0])


def drafter_call():
    x = example_calls.Inputs()
    return Rows(x.rows(3), **x.filters(3)), *x.random(3).values()


def check_rows(got, want):
    """Compare Rows field by field, and their type."""
    assert [type(x) for x in got] == [Rows] * len(want)
    for a, b in zip(got, want):
        fields = [(name, getattr(a, name), getattr(b, name)) for name in Rows._fields]
        assert [name for name, x, y in fields if not (torch.equal(x, y) if torch.is_tensor(y) else x == y)] == []


def test_rows_in_compiled_and_exported_programs():
    call = drafter_call()
    want = Drafter()(*call)
    torch._dynamo.reset()
    check_rows(torch.compile(Drafter(), fullgraph=True, backend="aot_eager")(*call), want)
    check_rows(torch.export.export(Drafter(), call).module()(*call), want)


@pytest.mark.parametrize("op", flat.SIDES)
def test_compiled_calls_take_rows(op):
    """torch.compile takes Rows as an input of the graph. The call is the example that gives the most fields."""
    call = max(CALLS[op], key=lambda call: sum("." in name for name in example_calls.flat(call)))
    function = getattr(sk, op)
    torch._dynamo.reset()
    traced = torch.compile(lambda call: function(**call), fullgraph=True, backend="aot_eager", dynamic=False)
    assert same(tensors(traced(call)), tensors(function(**call)))
