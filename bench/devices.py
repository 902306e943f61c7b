# SPDX-License-Identifier: Apache-2.0
"""Detection, without a GPU, of code that mixes devices or waits for a GPU.

    with devices.watch() as seen:
        x = torch.zeros(3, device="cuda")   # is on the CPU and recorded as cuda:0; x.device returns that
        x + torch.ones(3)                   # MixedDevices, as on a GPU
        x.sum().item()                      # seen.synchronisations: the place and the operation

Devices are recorded by storage, so views, parameters and tensors written in place keep their device. Calls are checked
as Python makes them. Whatever would make the host wait for a GPU counts as a synchronisation: reading values (item,
bool, tolist, copies to the CPU), shapes that depend on data (nonzero, masks as indices), and copies to the GPU that
are not ``non_blocking``, including index tensors and lists. Other copies to the GPU count as uploads. Streams, events
and graphs are those of bench.rehearsal. Mixed memory inside a single torch call, and a kernel's accesses, are not seen.

``python -m bench.devices MODULE [arguments]`` runs a module under watch().
"""

from __future__ import annotations

import contextlib
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from bench import rehearsal

__all__ = ["MixedDevices", "Watch", "watch", "watching"]

_PACKAGE = str(Path(__file__).parents[1] / "specdec_kernels")
_TENSOR = torch.Tensor
_SAYS = {_TENSOR.device.__get__: torch.device("cuda:0"), _TENSOR.is_cuda.__get__: True, _TENSOR.is_cpu.__get__: False}
_READS = {_TENSOR.tolist, _TENSOR.numpy, _TENSOR.__array__}
_MOVES = {_TENSOR.to, _TENSOR.cpu, _TENSOR.cuda, torch.as_tensor}
# Calls that are not checked: pinning (which does nothing), device objects, and the internals of Module.to().
_AS_THEY_ARE = {
    *(_TENSOR.pin_memory, torch.device, _TENSOR.data.__set__),
    *(torch._C._nn._parse_to, torch._has_compatible_shallow_copy_type),
}
_INDEXES = {_TENSOR.__getitem__, _TENSOR.__setitem__}
# Operators at the dispatcher, below Python's call, in which the host reads a value or a shape depends on one.
_WAITS = {
    *("item", "_local_scalar_dense", "is_nonzero", "equal", "allclose", "nonzero", "masked_select", "bincount"),
    *("_unique", "_unique2", "unique_dim", "unique_consecutive"),
}


watching: Watch | None = None  # the innermost watch()


class MixedDevices(RuntimeError):
    """Error of an operator that got tensors on both devices."""


class Watch:
    """The synchronisations and uploads seen, each with its operator and the nearest line of the package.

    A watch within another knows its tensors, and what it sees the outer one sees too.
    """

    def __init__(self, outer: Watch | None = None) -> None:
        self.synchronisations: list[str] = []
        self.uploads: list[str] = []
        self._outer = outer
        self._cuda: dict[int, StorageWeakRef] = {} if outer is None else outer._cuda

    def is_cuda(self, x: torch.Tensor) -> bool:
        """Return whether x was created on "cuda"."""
        known = self._cuda.get(_storage(x))
        return known is not None and not known.expired()

    def remember(self, x: torch.Tensor) -> torch.Tensor:
        if len(self._cuda) > 10_000:  # an address is not reused while a weak reference to it is kept
            for key in [key for key, ref in self._cuda.items() if ref.expired()]:
                del self._cuda[key]
        self._cuda[_storage(x)] = StorageWeakRef(x.untyped_storage())
        return x

    def synchronised(self, by: str) -> None:
        self.synchronisations.append(f"{_place()}: {by}")
        if self._outer is not None:
            self._outer.synchronised(by)

    def copied(self, to_cuda: bool, blocking: bool, by: str) -> None:
        """Record a copy between the CPU and the GPU."""
        if to_cuda and not blocking:
            self.uploads.append(f"{_place()}: {by}")
            if self._outer is not None:
                self._outer.copied(to_cuda, blocking, by)
        else:
            self.synchronised(f"{by} to the {'GPU' if to_cuda else 'CPU'}")


class _Calls(TorchFunctionMode):
    """A mode that records devices and checks each call of torch."""

    @property
    def seen(self) -> Watch:
        return _innermost()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        tensors = _tensors(args, kwargs)
        cuda = [self.seen.is_cuda(x) for x in tensors]
        if function in _SAYS and any(cuda):
            return _SAYS[function]
        if function in _AS_THEY_ARE:
            return args[0] if function is _TENSOR.pin_memory else function(*args, **kwargs)
        kwargs.pop("pin_memory", None)
        asked = next((d for d in map(_device, (*args, *kwargs.values())) if d is not None), None)
        args, kwargs = [_on_cpu(x) for x in args], {key: _on_cpu(x) for key, x in kwargs.items()}
        if function in _MOVES and tensors:
            return self._move(function, args, kwargs, cuda, asked)
        if function is torch.tensor and asked == "cuda":
            self.seen.synchronised("torch.tensor to the GPU")
        if function in _READS and any(cuda):
            self.seen.synchronised(function.__name__)
        if any(cuda):
            self._check(function, args, tensors, cuda, kwargs)
        result = function(*args, **kwargs)
        if asked == "cuda" or (any(cuda) and asked is None):
            given = set(map(_storage, tensors))
            for x in _tensors(result):
                if _storage(x) not in given:
                    self.seen.remember(x)
        return result

    def _move(self, function, args, kwargs, cuda, asked):
        x, blocking = args[0], not (kwargs.pop("non_blocking", False) or any(a is True for a in args[1:]))
        from_cuda, by = cuda[0], function.__name__
        to_cuda = {_TENSOR.cpu: False, _TENSOR.cuda: True}.get(function, cuda[-1] if asked is None else asked == "cuda")
        result = x if function is _TENSOR.cuda else function(*args, **kwargs)
        if from_cuda == to_cuda:
            return result if result is x or not to_cuda else self.seen.remember(result)
        self.seen.copied(to_cuda, blocking, by)
        result = result.clone() if _storage(result) == _storage(x) else result
        return self.seen.remember(result) if to_cuda else result

    def _check(self, function, args, tensors, cuda, kwargs):
        if function in _INDEXES and cuda[0]:
            index = _tensors(args[1])
            lists = isinstance(args[1], list) or isinstance(args[1], tuple) and any(type(i) is list for i in args[1])
            if lists or not all(map(self.seen.is_cuda, index)):
                self.seen.synchronised(f"{function.__name__} with an index on the CPU")
            if isinstance(args[-1], torch.Tensor) and len(args) == 3 and args[-1].dim() and not cuda[-1]:
                self.seen.copied(True, True, "__setitem__")
            return
        if function is _TENSOR.copy_ and cuda[0] != cuda[1]:
            waits = not (kwargs.get("non_blocking") or any(a is True for a in args[2:]))
            self.seen.copied(cuda[0], waits, "copy_")
            return
        ours = str(getattr(function, "__module__", "")).startswith("torch._ops") or "specdec" in str(function)
        if not all(on or (x.dim() == 0 and not ours) for x, on in zip(tensors, cuda)):
            shapes = ", ".join(f"{'cuda' if on else 'cpu'} {list(x.shape)}" for x, on in zip(tensors, cuda))
            name = getattr(function, "__name__", None) or str(function)
            raise MixedDevices(f"{name}: expected all tensors on one device, got {shapes} at {_place()}")


class _Below(TorchDispatchMode):
    """A mode below Python's calls, at the dispatcher, that records operators which would wait for a GPU."""

    @property
    def seen(self) -> Watch:
        return _innermost()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name.removeprefix("aten::")
        waits = name in _WAITS or _by_data(name, args, kwargs)
        if waits and any(map(self.seen.is_cuda, _tensors(args, kwargs))):
            self.seen.synchronised(name)
        return function(*args, **(kwargs or {}))


def _by_data(name: str, args, kwargs) -> bool:
    """Return whether the shape of the operator's result depends on data.

    It does for an index that is a mask (except for writing a single value), and for repeats given as a tensor without
    output_size.
    """
    if name == "repeat_interleave":
        return (kwargs or {}).get("output_size") is None and isinstance(args[min(1, len(args) - 1)], torch.Tensor)
    if name not in ("index", "index_put", "index_put_"):
        return False
    masked = any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])
    return masked and (name == "index" or args[2].numel() != 1)


def _innermost() -> Watch:
    assert watching is not None, "a mode of watch() is on"
    return watching


def _tensors(*values: object) -> list[torch.Tensor]:
    """Return the tensors among values and in their tuples, lists and dicts. torch's pytree takes four times as long."""
    found = []
    for x in values:
        if isinstance(x, torch.Tensor):
            found.append(x)
        elif isinstance(x, tuple | list):
            found += _tensors(*x)
        elif isinstance(x, dict):
            found += _tensors(*x.values())
    return found


def _storage(x: torch.Tensor) -> int:
    """Return the address of x's storage; 0 for packed weights, which exist only on the CPU."""
    return x.untyped_storage()._cdata if x.layout is torch.strided else 0


def _device(x: object) -> str | None:
    if isinstance(x, torch.device) or (isinstance(x, str) and x.partition(":")[0] in ("cuda", "cpu")):
        return torch.device(x).type
    return None


def _on_cpu(x: object) -> object:
    return "cpu" if _device(x) == "cuda" else x


def _place() -> str:
    """Return the nearest line of the package on the stack, else the nearest outside torch and this file."""
    frame, other = sys._getframe(), None
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_PACKAGE):
            return f"{Path(name).relative_to(_PACKAGE)}:{frame.f_lineno}"
        if other is None and name != __file__ and f"{Path(torch.__file__).parent}" not in name:
            other = f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return other or "?"


@contextlib.contextmanager
def watch() -> Iterator[Watch]:
    """Create tensors on "cuda" on the CPU instead, and record their device, in a with block -> a Watch.

    Blocks can be nested. Only the outermost changes how torch is called.
    """
    global watching
    outer, watching = watching, Watch(watching)
    try:
        with contextlib.ExitStack() as stack:
            if outer is None:
                stack.enter_context(_Below())
                stack.enter_context(rehearsal.no_gpu(_Calls()))
                for name, value in {"current_device": 0, "device_count": 1}.items():
                    stack.enter_context(mock.patch.object(torch.cuda, name, lambda value=value: value))
            yield watching
    finally:
        watching = outer


if __name__ == "__main__":
    from bench import devices  # the module that others import, not this copy of it as __main__

    with devices.watch():
        sys.argv = sys.argv[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
