# SPDX-License-Identifier: Apache-2.0
"""What torch wants of every op: schema, fake and autograd registration agree (opcheck), and torch.compile sees through
it."""

import torch
from support import backends


class Recorded(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes the arguments with which a public function calls torch.ops.specdec.<name>."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "specdec":
            self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def recorded_call(name, function, *args, **kwargs):
    """function(...) calls the op once: its result, and the dispatcher's op with its arguments."""
    with Recorded() as recorded:
        result = function(*args, **kwargs)
    calls = [c for c in recorded.calls if c[0]._opname == name]
    assert len(calls) == 1, f"{name}: called {[str(c[0]) for c in recorded.calls]}"
    return result, calls[0]


def check_op(backend, name, function, *tensors):
    """function(*tensors) calls the op once: opcheck it with those arguments, then compile the public wrapper."""
    backends.there(backend, _check_op, name, function, *tensors)


def _check_op(name, function, *tensors):
    eager, (op, args, kwargs) = recorded_call(name, function, *tensors)
    torch.library.opcheck(op, args, kwargs)
    torch._dynamo.reset()
    compiled = torch.compile(lambda *t: function(*t), fullgraph=True, backend="aot_eager", dynamic=False)(*tensors)
    for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (compiled, eager))):
        assert a.dtype == b.dtype and torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))
