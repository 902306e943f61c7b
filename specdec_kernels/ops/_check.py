# SPDX-License-Identifier: Apache-2.0
"""What every public op checks before it launches: each message names op, argument, what was wanted, what came."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from specdec_kernels.backends import transforms
from specdec_kernels.registry import MAX_VOCABULARY, ROW_DTYPES

LOGITS = tuple(getattr(torch, name) for name in ROW_DTYPES)
INTEGERS = (torch.int32, torch.int64)
INT32 = (torch.int32,)
FLOAT32 = (torch.float32,)
FLOAT64 = (torch.float64,)
_STRIDED = torch.strided
is_traced = torch.compiler.is_dynamo_compiling
_SMALLEST = 2.0**-126  # temperatures below it are subnormal float32


class _Here(threading.local):
    over_ranks = False  # rows have all their entries in one place: specdec_kernels.distributed


here = _Here()


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return " or ".join(str(d).removeprefix("torch.") for d in dtypes)


def shown(x: object) -> str:
    """What came, in a few words: the number or the word itself where it is short, else its type."""
    if isinstance(x, str):
        return f"{x!r:.80}"
    if isinstance(x, int) and x.bit_length() > 64:
        return f"an int of {x.bit_length()} bits"
    return str(x) if x is None or isinstance(x, (int, float)) else type(x).__name__


def python_number(x: Any) -> Any:
    """The Python number of a numpy scalar or of a tensor of one entry; anything else as it is."""
    if isinstance(x, (int, float)):  # a bool, and numpy's float64, are among them
        return x
    try:
        return x.item()
    except Exception:  # no item, or more than one of them
        return x


def integer(op: str, name: str, x: Any, low: int, high: int, wanted: str, kind: str = "an int") -> int:
    """x, as an int in [low, high], which `wanted` says in words."""
    if type(x) is int and low <= x <= high:
        return x
    n = x if isinstance(x, torch.SymInt) else python_number(x)
    if isinstance(n, bool) or not isinstance(n, (int, torch.SymInt)):
        raise TypeError(f"{op}: {name} must be {kind}, got {type(x).__name__}")
    if not low <= n <= high:
        raise ValueError(f"{op}: {name} must be {wanted}, got {shown(n)}")
    return n  # type: ignore[return-value]  # a SymInt where torch.compile traces


def flag(op: str, name: str, x: object) -> bool:
    if isinstance(x, bool):
        return x
    x = python_number(x)
    if not isinstance(x, (int, float)):
        raise TypeError(f"{op}: {name} must be a bool, got {type(x).__name__}")
    return bool(x)


def choice(op: str, name: str, x: object, choices) -> None:
    """x is one of a few words."""
    if not isinstance(x, str) or x not in choices:
        *others, last = map(repr, choices)
        raise (ValueError if isinstance(x, str) else TypeError)(
            f"{op}: {name} must be {', '.join(others)} or {last}, got {shown(x)}"
        )


def tensor(
    op: str, name: str, x: object, dtypes: tuple[torch.dtype, ...], device: torch.device | None = None
) -> torch.Tensor:
    """x is a tensor of one of the dtypes, on the device of the op's first argument."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{op}: {name} must be a torch.Tensor, got {type(x).__name__}")
    if x.layout is not _STRIDED or x.is_nested:
        layout = "a nested tensor" if x.is_nested else str(x.layout).removeprefix("torch.")
        raise TypeError(f"{op}: {name} must be a dense tensor, got {layout}")
    if x.dtype not in dtypes:
        raise TypeError(f"{op}: {name} must be {_names(dtypes)}, got {str(x.dtype).removeprefix('torch.')}")
    if device is not None and x.device != device:
        raise ValueError(f"{op}: {name} must be on {device}, got {x.device}")
    return x


def floats(
    op: str, name: str, x: object, dtypes: tuple[torch.dtype, ...], device: torch.device | None = None
) -> torch.Tensor:
    """tensor() of floats, which must have no tangent."""
    x = tensor(op, name, x, dtypes, device)
    if forward_ad._current_level >= 0:
        transforms.refuse_dual(op, name, x)
    return x


def shape(op: str, name: str, x: torch.Tensor, **want: int) -> None:
    """x has the named sizes, in order: ``shape(op, "draft_tokens", x, B=4, G=5)``."""
    if x.shape != tuple(want.values()):
        wanted = ", ".join(key if key.isdigit() else f"{key}={size}" for key, size in want.items())
        raise ValueError(f"{op}: {name} must have shape [{wanted}], got {list(x.shape)}")


def dims(op: str, name: str, x: torch.Tensor, want: str) -> None:
    """x has as many dimensions as `want` names: ``dims(op, "logits", x, "N, V")``."""
    if x.dim() != want.count(",") + 1:
        raise ValueError(f"{op}: {name} must have shape [{want}], got {list(x.shape)}")


def rows(op: str, name: str, x: object, want: str, device: torch.device | None = None) -> torch.Size:
    """x holds rows that can be read in place, of the shape that is returned."""
    x = tensor(op, name, x, LOGITS, device)
    if forward_ad._current_level >= 0:  # inside dual_level() alone; most calls pay for no more than this
        transforms.refuse_dual(op, name, x)
    sizes = x.shape  # once: each look makes another
    if len(sizes) != want.count(",") + 1:
        dims(op, name, x, want)
    V = sizes[-1]
    if not x.is_contiguous() and x.stride(-1) != 1 and V > 1 and x.numel() and not here.over_ranks:
        raise ValueError(f"{op}: {name} must be contiguous in its last dimension, got strides {list(x.stride())}")
    if not 1 <= V <= MAX_VOCABULARY:
        raise ValueError(f"{op}: {name} must have a vocabulary of 1 to 2^24, got {V}")
    return sizes


def stats(op: str, name: str, x: object, n: int, device: torch.device) -> torch.Tensor:
    """The four floats of n rows, as the ops take them."""
    x = floats(op, name, x, FLOAT32, device)
    shape(op, name, x, N=n, **{"4": 4})
    return x.contiguous()


def in_graph(numbers: Sequence[float], device: torch.device, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Numbers as a tensor where torch.compile traces, so that one graph serves all of their values. A number that is
    an argument of an op, of torch.full or torch.tensor too, is baked into the graph; a factor is not."""
    one = torch.ones(1, dtype=dtype, device=device)
    return torch.cat([one * x for x in numbers]) if len(numbers) > 1 else one * numbers[0]


def present(op: str, name: str, x: object, device: torch.device) -> torch.Tensor | None:
    """num_rows or num_requests: how many of padded buffers are there, None: all."""
    if x is None:
        return None
    x = tensor(op, name, x, INTEGERS, device)
    if x.shape != (1,):
        raise ValueError(f"{op}: {name} must have shape [1], got {list(x.shape)}")
    return x


def is_greedy(temperature: object) -> bool:
    """Whether one number makes every request greedy."""
    if temperature is None or isinstance(temperature, torch.Tensor):
        return False
    number = python_number(temperature)
    return isinstance(number, (int, float)) and 0 <= number < _SMALLEST


def randomness(op: str, seed, offset, uniforms, n: int, columns: int, device: torch.device, needed: bool):
    """seed and offset [n], or uniforms [n, columns] float64, one of them if anything is to be drawn. The uniforms as
    the ops take them, or None."""
    if uniforms is not None:
        floats(op, "uniforms", uniforms, FLOAT64, device)
        if uniforms.shape != (n, columns):
            raise ValueError(f"{op}: uniforms must have shape [{n}, {columns}], got {list(uniforms.shape)}")
        if seed is not None or offset is not None:
            raise ValueError(f"{op}: uniforms take the place of seed and offset, got both")
        return uniforms.contiguous()
    if (seed is None) != (offset is None):
        raise ValueError(f"{op}: seed and offset go together, got {'offset' if seed is None else 'seed'} alone")
    if seed is None:
        if needed:
            raise ValueError(f"{op}: needs seed and offset, or uniforms, got neither")
        return None
    for name, x in (("seed", seed), ("offset", offset)):
        tensor(op, name, x, INTEGERS[1:], device)
        if x.shape not in ((n,), (1,)):
            raise ValueError(f"{op}: {name} must have shape [{n}], got {list(x.shape)}")
    return None
