# SPDX-License-Identifier: Apache-2.0
"""torch.ops.specdec_check.*, each op up to where it would run: its results are as the op's, and nothing is in them."""

import pytest
import torch
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
    """On the CPU, on the meta device, and by the fake, which says shapes in Python."""
    run, check = (getattr(getattr(torch.ops, space), op) for space in ("specdec", "specdec_check"))
    for call in example_calls.calls(op):
        arguments = example_calls.op_arguments(op, getattr(sk, op), **call.arguments)
        wanted = made(run(*arguments))
        assert made(check(*arguments)) == wanted
        assert made(check(*on_meta(arguments))) == wanted == made(run(*on_meta(arguments)))


def test_arguments_are_not_written():
    """No kernel runs, and results of the caller's stay as they were."""
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
    arguments = (rows, temperature, *[None] * 5)
    with pytest.raises(RuntimeError, match="row_stats: rows.temperature must be finite and >= 0, got -1 at index 1"):
        torch.ops.specdec_check.row_stats(*arguments)
    assert torch.ops.specdec_check.row_stats(*on_meta(arguments)).shape == (2, 4)
    with pytest.raises(RuntimeError, match=r"row_stats: rows.temperature must have shape \[2\], got \[3\]"):
        torch.ops.specdec_check.row_stats(*on_meta((rows, temperature.new_ones(3), *[None] * 5)))
