# SPDX-License-Identifier: Apache-2.0
"""torch.ops.specdec_check.*: each op's checks without its kernel. Results have the op's shapes and dtypes, and no
contents."""

import pytest
import torch
from support import surface
from torch.utils._pytree import tree_map_only

import specdec_kernels as sk
from specdec_kernels import example_calls
from specdec_kernels.backends import dispatch
from specdec_kernels.registry import OPS


def made(x):
    return [(t.shape, t.dtype, t.stride()) for t in ([x] if isinstance(x, torch.Tensor) else x)]


def on_meta(arguments):
    return tree_map_only(torch.Tensor, lambda x: x.to("meta"), arguments)


def test_every_op_has_its_check():
    for op in dispatch.overloads():
        name, _, overload = op.partition(".")
        check = getattr(getattr(torch.ops.specdec_check, name), overload or "default")
        of_op = str(dispatch.overload_of(op)._schema)
        assert str(check._schema) == of_op.replace("specdec::", "specdec_check::")


@pytest.mark.parametrize("op", OPS)
def test_results_are_made_as_the_op_makes_them(op):
    """Shapes and dtypes agree on the CPU, on the meta device and in the fake, which is written in Python."""
    run, check = (getattr(getattr(torch.ops, space), op) for space in ("specdec", "specdec_check"))
    for call in example_calls.calls(op):
        arguments = example_calls.op_arguments(op, getattr(sk, op), **call.arguments)
        wanted = made(run(*arguments))
        assert made(check(*arguments)) == wanted
        assert made(check(*on_meta(arguments))) == wanted == made(run(*on_meta(arguments)))


@pytest.mark.parametrize("op", [op for op in dispatch.overloads() if op.endswith(".out")])
def test_results_of_the_caller_are_looked_at(op):
    """Given results (out=) are checked on the CPU, on the meta device, where no tensors share memory, and in the
    fake."""
    name = op.removesuffix(".out")
    for call in example_calls.calls(name):
        arguments = example_calls.op_arguments(name, getattr(sk, name), **call.arguments)
        run, check = (surface.overload(name, arguments, True, space) for space in ("specdec", "specdec_check"))
        names = [x.name for x in run._schema.arguments if x.kwarg_only]
        out = dict(zip(names, getattr(torch.ops.specdec, name)(*arguments)))
        assert check(*arguments, **out) is None
        for each in (check, run):
            assert each(*on_meta(arguments), **on_meta(out)) is None
            for wrong in names:
                with pytest.raises(RuntimeError, match=rf"^{name}: out\.{wrong} must have shape \[B="):
                    each(*on_meta(arguments), **on_meta(out | {wrong: out[wrong][1:]}))


def test_an_error_is_as_clear_where_a_call_is_compiled():
    def call(rows, temperature):
        return sk.row_stats(sk.Rows(rows, temperature=temperature))

    with pytest.raises(RuntimeError, match=r"row_stats: rows.temperature must have shape \[2\] or \[1\], got \[3\]"):
        torch.compile(call, backend="eager", fullgraph=True)(torch.zeros(2, 9), torch.ones(3))
    with pytest.raises(RuntimeError, match="row_stats: rows.temperature must be float32, got float64"):
        torch.compile(call, backend="eager")(torch.zeros(2, 9), torch.ones(2).double())


WRONG = {
    TypeError: lambda x: object(),
    ValueError: lambda x: x.to(torch.complex64),
    NotImplementedError: torch.Tensor.to_sparse,
}


def has_memory_of(x, arguments):
    return any(isinstance(y, torch.Tensor) and y.data_ptr() == x.data_ptr() for y in arguments)


@pytest.mark.parametrize("op", OPS)
def test_the_type_of_an_error(op):
    """The error's type for an argument that is no tensor, a tensor that the op refuses, or one of an unsupported
    layout."""
    for call in example_calls.few(op, V=11):
        given, found = example_calls.flat(call.arguments), 0
        taken = example_calls.op_arguments(op, getattr(sk, op), **call.arguments)
        for name, x in given.items():
            if not isinstance(x, torch.Tensor) or not has_memory_of(x, taken):
                continue  # arguments that the method ignores are not checked
            for error, change in WRONG.items():
                with pytest.raises(error, match=rf"^{op}: .*\b{name.replace('.', '[.]')}\b") as caught:
                    getattr(sk, op)(**example_calls.folded(given | {name: change(x)}))
                assert type(caught.value) is error
                found += 1
        assert found, call.name


def test_arguments_are_not_written():
    """No kernel runs, and given results stay unchanged."""
    arguments = example_calls.op_arguments(
        "verify_chain", sk.verify_chain, **example_calls.calls("verify_chain")[0].arguments
    )
    out = torch.ops.specdec.verify_chain(*arguments)
    before = [x.fill_(7).clone() for x in out]
    names = ("tokens", "num_accepted", "logprobs", "status")
    assert torch.ops.specdec_check.verify_chain.out(*arguments, **dict(zip(names, out))) is None
    assert all(torch.equal(x, y) for x, y in zip(out, before))


def test_values_are_looked_at_where_they_can_be():
    rows, temperature = torch.zeros(2, 9), torch.tensor([1.0, -1.0])
    arguments = (rows, temperature, *[None] * 6)
    with pytest.raises(RuntimeError, match="row_stats: rows.temperature must be finite and >= 0, got -1 at index 1"):
        torch.ops.specdec_check.row_stats(*arguments)
    assert torch.ops.specdec_check.row_stats(*on_meta(arguments)).shape == (2, 4)
    with pytest.raises(RuntimeError, match=r"row_stats: rows.temperature must have shape \[2\] or \[1\], got \[3\]"):
        torch.ops.specdec_check.row_stats(*on_meta((rows, temperature.new_ones(3), *[None] * 6)))
