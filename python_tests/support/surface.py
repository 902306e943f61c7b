# SPDX-License-Identifier: Apache-2.0
"""What torch wants of every op: schema, fake and autograd registration agree (opcheck), and torch.compile sees through
it."""

import torch
from support import worker

import specdec_kernels as sk
from specdec_kernels import arguments, example_calls


def tensors(result):
    """What a function made: of Rows, which come back with the caller's logits, their stats."""
    if isinstance(result, torch.Tensor):
        return [result]
    return [x.stats if isinstance(x, sk.Rows) else x for x in result]


def same(got, want):
    """Bit for bit, but that one NaN is as good as another."""
    return all(a.dtype == b.dtype and torch.equal(plain(a), plain(b)) for a, b in zip(got, want, strict=True))


def plain(x):
    """Of what torch compares: it has few operations on unsigned words."""
    if x.is_floating_point():
        return x.nan_to_num(7.0)
    return x.view({torch.uint32: torch.int32, torch.uint64: torch.int64}.get(x.dtype, x.dtype))


def overload(op, given, out=False, space="specdec"):
    """The overload of an op that takes these arguments."""
    kinds = ["views"] * (len(given) > len(arguments.plain(op))) + ["out"] * out
    return getattr(getattr(getattr(torch.ops, space), op), "_".join(kinds) or "default")


def recorded_call(op, function, *args, **kwargs):
    """function(...) calls torch.ops.specdec.<op> once: its result, and the dispatcher's op with its arguments."""
    result = []
    given = example_calls.op_arguments(op, lambda: result.append(function(*args, **kwargs)))
    return result[0], (overload(op, given), given, {})


def check_examples(op, most=None):
    """Of the op's example calls: all of opcheck for the first, schema and fake for each kind; every fifth compiled."""
    for i, call in enumerate(example_calls.few(op)[:most]):
        function, named = getattr(sk, op), worker.here(call.arguments)
        eager, (direct, args, kwargs) = recorded_call(op, function, **named)
        quick = {} if i == 0 else {"test_utils": ("test_schema", "test_faketensor")}
        torch.library.opcheck(direct, args, kwargs, **quick)
        if i % 5 == 0:
            torch._dynamo.reset()
            traced = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=False)
            assert same(tensors(traced(**named)), tensors(eager)), call.name
