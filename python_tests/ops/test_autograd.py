# SPDX-License-Identifier: Apache-2.0
"""No op is differentiable, and none says that it is: results never require grad, whatever the arguments do."""

import pytest
import torch
from support import backends, surface

import specdec_kernels as sk
from specdec_kernels import examples
from specdec_kernels.registry import OPS


def leaf(x):
    if isinstance(x, (tuple, list)):
        return type(x)(leaf(part) for part in x)
    return x.clone().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def with_grad(op, call, how):
    """What a call returns with arguments that require grad, and without; and which of the results say that they do."""
    function, wanted = getattr(sk, op), surface.tensors(getattr(sk, op)(**call))
    if how == "public":
        got = function(**leaf_call(call))
    elif how == "direct":
        _, (direct, args, _) = surface.recorded_call(op, function, **call)
        got = direct(*leaf(tuple(args)))
    else:
        torch._dynamo.reset()
        got = torch.compile(lambda **call: function(**call), fullgraph=True, backend="aot_eager", dynamic=False)(
            **leaf_call(call)
        )
    got = surface.tensors(got)
    return [x.detach() for x in got], wanted, [x.requires_grad for x in got]


def leaf_call(call):
    return {name: leaf(x) for name, x in call.items()}


@pytest.mark.parametrize("how", ["public", "direct", "compiled"])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.one_backend
@pytest.mark.slow
def test_results_require_no_grad(op_backend, op, how):
    few = examples.few(op)[: 1 if op_backend == "triton-interpret" or how == "compiled" else None]
    for call in few:
        got, wanted, grads = backends.there(op_backend, with_grad, op, call.arguments, how)
        assert grads == [False] * len(wanted), call.name
        assert surface.same(got, wanted), call.name
