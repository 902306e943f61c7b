# SPDX-License-Identifier: Apache-2.0
"""out=: results are written to the caller's tensors, which must not share memory with any other tensor of the call."""

import pytest
import torch
from support import backends, flat, tiers, worker
from support.surface import same
from torch.utils._pytree import tree_flatten, tree_unflatten

import specdec_kernels as sk
from specdec_kernels import example_calls

OPS = ("verify_chain", "verify_tree")
REAL = ("cpu", "cuda", "triton")  # the others are simulated, and slow


def room(result, tokens=torch.int64):
    """Return tensors like a result's, filled with a value that no result holds. tokens: the tokens' dtype."""
    kinds = [tokens, *(x.dtype for x in result[1:])]
    return type(result)(*(torch.full(x.shape, -77, dtype=kind, device=x.device) for x, kind in zip(result, kinds)))


def plainly_and_into(op, arguments, dtype):
    """Return the result, the tensors given as out=, and whether these are what the call returned."""
    function = getattr(sk, op)
    want = function(**arguments)
    out = room(want, dtype)
    back = function(**arguments, out=out)
    return want, out, all(a is b for a, b in zip(back, out)) and type(back) is type(want)


@pytest.mark.parametrize("op", OPS)
def test_the_same_result(op_backend, op):
    calls = (
        example_calls.calls(op)
        if op_backend in REAL
        else example_calls.few(op, V=37)[:: 3 if tiers.TIER == "all" else 6]
    )
    for i, call in enumerate(backends.served(op_backend, op, calls)):
        dtype = (torch.int32, torch.int64)[i % 2]
        want, out, returned = backends.there(op_backend, plainly_and_into, op, call.arguments, dtype)
        assert returned
        assert same(out._replace(tokens=out.tokens.long()), want), call.name


def side_by_side(x, t, shared):
    """Return copies of both in one storage, t after x. shared: t overlaps x's last byte."""
    start = (x.nbytes - 1) // 8 * 8 if shared else -(-x.nbytes // 8) * 8
    memory = torch.zeros(start + t.nbytes, dtype=torch.uint8, device=x.device)
    first, then = memory[: x.nbytes], memory[start : start + t.nbytes]
    then = then.view(t.dtype).view(t.shape).copy_(t)
    return first.view(x.dtype).view(x.shape).copy_(x), then


def with_neighbour(op, arguments, i, name, shared):
    """Call the op with out.<name> directly after its i-th tensor in memory, or overlapping it if `shared`. Return the
    result, and that of a plain call."""
    want = getattr(sk, op)(**arguments)
    leaves, form = tree_flatten(arguments)
    at = [k for k, x in enumerate(leaves) if is_there(x)]
    out = room(want)
    leaves[at[i]], t = side_by_side(leaves[at[i]], getattr(out, name), shared)
    return getattr(sk, op)(**tree_unflatten(leaves, form), out=out._replace(**{name: t})), want


def is_there(x):
    return isinstance(x, torch.Tensor) and x.numel() > 0


def tensors_of(arguments):
    return list(filter(is_there, tree_flatten(arguments)[0]))


@pytest.mark.parametrize("op", OPS)
def test_memory_of_an_argument(op_backend, op):
    """out= may lie directly after an argument in memory, but raises if it overlaps the argument's last byte."""
    calls = example_calls.few(op, V=37)
    names = getattr(sk, f"{op.title().replace('_', '')}Output")._fields
    for j, call in enumerate(calls if op_backend in REAL else calls[:1]):
        seen = {x.data_ptr() for x in example_calls.op_arguments(op, getattr(sk, op), **call.arguments) if is_there(x)}
        for i, x in enumerate(tensors_of(call.arguments)):
            if x.data_ptr() not in seen:
                continue  # tensors that the method does not read are not passed to the op
            name = names[(i + j) % len(names)]
            with pytest.raises(
                ValueError, match=rf"^{op}: out\.{name} must have memory of its own, got some of another"
            ):
                backends.there(op_backend, with_neighbour, op, call.arguments, i, name, True)
            got, want = backends.there(op_backend, with_neighbour, op, call.arguments, i, name, False)
            assert same(got, want), (call.name, i, name)


def with_one_for_two(op, arguments, name, other):
    out = room(getattr(sk, op)(**arguments))
    out = out._replace(**{name: getattr(out, other).view(getattr(out, name).dtype).view(getattr(out, name).shape)})
    getattr(sk, op)(**arguments, out=out)


@pytest.mark.parametrize("op, name, other", [(op, "status", "num_accepted") for op in OPS] + [
    ("verify_tree", "path", "logprobs")])  # fmt: skip
def test_memory_of_another_result(op_backend, op, name, other):
    arguments = example_calls.calls(op, V=37)[0].arguments
    with pytest.raises(ValueError, match=rf"^{op}: out\.{name} must have memory of its own, got some of another"):
        backends.there(op_backend, with_one_for_two, op, arguments, name, other)


def result_of(op="verify_chain"):
    arguments = worker.here(example_calls.calls(op, V=37)[0].arguments)
    return arguments, room(getattr(sk, op)(**arguments))


WRONG = [
    (lambda out: out[:3], TypeError, r"out must be \(tokens, num_accepted, logprobs, status\), got 3 of them"),
    (lambda out: out.tokens, TypeError, r"out must be \(tokens, num_accepted, logprobs, status\), got Tensor"),
    (lambda out: out._replace(tokens=out.tokens.float()), ValueError,
     r"out\.tokens must be int32 or int64, got float32"),
    (lambda out: out._replace(tokens=out.tokens[:, 1:]), ValueError,
     r"out\.tokens must have shape \[B=4, G\+1=6\], got"),
    (lambda out: out._replace(tokens=columns_first(out.tokens)), ValueError,
     r"out\.tokens must be contiguous, got strides \[1, 4\]"),
    (lambda out: out._replace(logprobs=out.logprobs.double()), ValueError,
     r"out\.logprobs must be float32, got float64"),
    (lambda out: out._replace(num_accepted=out.num_accepted.long()), ValueError,
     r"out\.num_accepted must be int32, got int64"),
    (lambda out: out._replace(status=out.status[:2]), ValueError, r"out\.status must have shape \[B=4\], got \[2\]"),
    (lambda out: out._replace(status=None), TypeError, r"out\.status must be a torch.Tensor, got NoneType"),
]  # fmt: skip


@pytest.mark.parametrize("change, error, message", WRONG, ids=range(len(WRONG)))
def test_errors(change, error, message):
    arguments, out = result_of()
    with pytest.raises(error, match=f"^verify_chain: {message}"):
        flat.call(sk.verify_chain, **arguments, out=change(out))


def columns_first(x):
    return x.t().contiguous().t()


def twice(x):
    return x.repeat(2)


def direct(op, name, change):
    arguments, out = result_of(op)
    given = example_calls.op_arguments(op, getattr(sk, op), **arguments)
    out = out._asdict() | {name: change(getattr(out, name))}
    getattr(torch.ops.specdec, op).out(*given, **out)


@pytest.mark.parametrize(
    "name, change, message",
    [
        ("tokens", torch.Tensor.float, r"out.tokens must be int32 or int64, got float32"),
        ("status", twice, r"out.status must have shape \[B=\d\], got"),
        ("logprobs", columns_first, r"out.logprobs must be contiguous, got strides"),
    ],
    ids=["dtype", "shape", "strides"],
)
@pytest.mark.parametrize("op", OPS)
def test_the_op_checks_again(op_backend, op, name, change, message):
    with pytest.raises(RuntimeError, match=f"^{op}: {message}"):
        backends.there(op_backend, direct, op, name, change)


@pytest.mark.parametrize("op", OPS)
def test_opcheck(op):
    arguments, out = result_of(op)
    given = example_calls.op_arguments(op, getattr(sk, op), **arguments)
    torch.library.opcheck(getattr(torch.ops.specdec, op).out, given, out._asdict())


@pytest.mark.parametrize("op", OPS)
def test_compiled(op):
    """A compiled call writes to the caller's tensors too."""
    arguments, out = result_of(op)
    torch._dynamo.reset()
    traced = torch.compile(getattr(sk, op), fullgraph=True, backend="aot_eager")
    back = traced(**arguments, out=out)
    assert same(out, getattr(sk, op)(**arguments)) and same(back, out)


def test_absent_requests(op_backend):
    """Entries of absent requests are written too, so no results of an earlier step remain."""
    arguments = example_calls.calls("verify_chain", V=37)[0].arguments | {"num_requests": torch.tensor([2])}
    want, out, _ = backends.there(op_backend, plainly_and_into, "verify_chain", arguments, torch.int32)
    assert same(out._replace(tokens=out.tokens.long()), want)
    assert (out.tokens[2:] == -1).all() and not out.logprobs[2:].any()


def test_backward_through_what_was_written_raises():
    """Autograd detects that a tensor it saved was overwritten."""
    arguments, out = result_of()
    weight = torch.ones_like(out.logprobs, requires_grad=True)
    loss = (weight * out.logprobs).sum()
    flat.call(sk.verify_chain, **arguments, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
