# SPDX-License-Identifier: Apache-2.0
"""torch's own checks of every op: opcheck (schema, fake and autograd registration agree), and torch.compile."""

import torch
from support import worker

import specdec_kernels as sk
from specdec_kernels import arguments, example_calls


def tensors(result):
    """Return the tensors of a result. Of Rows only the stats are returned, since the logits are the caller's."""
    if isinstance(result, torch.Tensor):
        return [result]
    return [x.stats if isinstance(x, sk.Rows) else x for x in result if x is not None]


def same(got, want):
    """Return whether two lists of tensors are equal bit for bit, with all NaNs equal."""
    return all(a.dtype == b.dtype and torch.equal(plain(a), plain(b)) for a, b in zip(got, want, strict=True))


def plain(x):
    """Return a tensor that torch can compare: NaN replaced, and unsigned integers as signed, for lack of operations."""
    if x.is_floating_point():
        return x.nan_to_num(7.0)
    return x.view({torch.uint32: torch.int32, torch.uint64: torch.int64}.get(x.dtype, x.dtype))


def overload(op, given, out=False, space="specdec"):
    """Return the overload of an op that takes these arguments."""
    kinds = ["views"] * (len(given) > len(arguments.plain(op))) + ["out"] * out
    return getattr(getattr(getattr(torch.ops, space), op), "_".join(kinds) or "default")


def outcome_of(op):
    """Return a function that makes a call of the op and returns the outcome."""
    return lambda **named: example_calls.outcome(op, getattr(sk, op), **named)


def recorded_call(op, function, *args, **kwargs):
    """Run a function that calls torch.ops.specdec.<op> once. Return its outcome, and the op with its arguments."""
    result = []
    given = example_calls.op_arguments(op, lambda: result.append(example_calls.outcome(op, function, *args, **kwargs)))
    names = [x.public for x in arguments.taken(op)]
    own = dict(zip(names, args)) | kwargs  # the op got copies of those that it writes to
    written = [x.is_written for x in arguments.taken(op)]
    given = tuple(own[name] if copied else x for name, x, copied in zip(names, given, written))
    return result[0], (overload(op, given), given, {})


def check_examples(op, most=None):
    """Check an op's example calls: the first with all of opcheck, the others with its checks of schema and fake.

    Every fifth is also compiled.
    """
    for i, call in enumerate(example_calls.few(op)[:most]):
        function, named = getattr(sk, op), worker.here(call.arguments)
        eager, (direct, args, kwargs) = recorded_call(op, function, **named)
        quick = {} if i == 0 else {"test_utils": ("test_schema", "test_faketensor")}
        torch.library.opcheck(direct, args, kwargs, **quick)
        if i % 5 == 0:
            torch._dynamo.reset()
            traced = torch.compile(outcome_of(op), fullgraph=True, backend="aot_eager", dynamic=False)
            assert same(tensors(traced(**named)), tensors(eager)), call.name
