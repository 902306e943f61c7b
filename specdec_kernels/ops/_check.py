# SPDX-License-Identifier: Apache-2.0
"""Checks and conversions of arguments in Python. Errors name the op, the argument, what was wanted and what came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

is_traced = torch.compiler.is_dynamo_compiling
_SMALLEST = 2.0**-126  # temperatures below it are subnormal in float32 and count as 0


def shown(x: object) -> str:
    """Describe an argument in a few words: the number or the word itself if it is short, else its type."""
    if isinstance(x, str):
        return f"{x!r:.80}"
    if isinstance(x, int) and x.bit_length() > 64:
        return f"an int of {x.bit_length()} bits"
    return str(x) if x is None or isinstance(x, (int, float)) else type(x).__name__


def python_number(x: Any) -> Any:
    """Return the Python number of a numpy scalar or of a tensor of one entry, and anything else unchanged."""
    if isinstance(x, (int, float)):  # includes bool and numpy's float64
        return x
    try:
        return x.item()
    except Exception:  # no method item(), or more than one entry
        return x


def integer(
    op: str,
    name: str,
    x: Any,
    low: int = -(1 << 63),
    high: int = (1 << 63) - 1,
    wanted: str = "in [-2^63, 2^63)",
    kind: str = "an int",
) -> int:
    """Return x as an int in [low, high]. For errors, `wanted` is the range and `kind` the type in words."""
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
    """Check that x is one of a few words."""
    if not isinstance(x, str) or x not in choices:
        *others, last = map(repr, choices)
        raise (ValueError if isinstance(x, str) else TypeError)(
            f"{op}: {name} must be {', '.join(others)} or {last}, got {shown(x)}"
        )


def tensor(op: str, name: str, x: Any) -> torch.Tensor:
    """Check that x is a tensor that this package can examine before the op does."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{op}: {name} must be a torch.Tensor, got {type(x).__name__}")
    if x.layout is not torch.strided or x.is_nested or x.is_quantized:
        layout = str(x.dtype if x.is_quantized else x.layout).removeprefix("torch.")
        layout = "a nested tensor" if x.is_nested else layout
        raise NotImplementedError(f"{op}: {name} must be a dense tensor, got {layout}")
    return x


def dtype(op: str, name: str, x: Any, *dtypes: torch.dtype) -> torch.Tensor:
    """Check that x is a tensor of one of these dtypes."""
    if tensor(op, name, x).dtype not in dtypes:
        wanted, came = (" or ".join(str(d).removeprefix("torch.") for d in y) for y in (dtypes, (x.dtype,)))
        raise ValueError(f"{op}: {name} must be {wanted}, got {came}")
    return x


def integers(op: str, name: str, x: Any) -> torch.Tensor:
    return dtype(op, name, x, torch.int32, torch.int64)


def contiguous(x: Any) -> Any:
    """Return a dense tensor as contiguous, for ops that take no strides; the op refuses anything else."""
    return x.contiguous() if isinstance(x, torch.Tensor) and x.layout is torch.strided else x


def shape(op: str, name: str, x: torch.Tensor, **want: int) -> None:
    """Check the named sizes, in order: ``shape(op, "draft_tokens", x, B=4, G=5)``."""
    if x.shape != tuple(want.values()):
        wanted = ", ".join(key if key.isdigit() else f"{key}={size}" for key, size in want.items())
        raise ValueError(f"{op}: {name} must have shape [{wanted}], got {list(x.shape)}")


def dims(op: str, name: str, x: torch.Tensor, want: str) -> None:
    """Check that x has as many dimensions as `want` names: ``dims(op, "logits", x, "N, V")``."""
    if x.dim() != want.count(",") + 1:
        raise ValueError(f"{op}: {name} must have shape [{want}], got {list(x.shape)}")


def in_graph(numbers: Sequence[float], device: torch.device, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return numbers as a tensor made on the device, since a CUDA graph cannot capture a copy from the host.

    torch.compile uses one graph for all values: it keeps a factor as a variable, but would make an argument of
    torch.full a constant."""
    one = torch.ones(1, dtype=dtype, device=device)
    return torch.cat([one * x for x in numbers]) if len(numbers) > 1 else one * numbers[0]


def is_greedy(temperature: object) -> bool:
    """Return whether a single number makes every request greedy."""
    if temperature is None or isinstance(temperature, torch.Tensor):
        return False
    number = python_number(temperature)
    return isinstance(number, (int, float)) and 0 <= number < _SMALLEST


def randomness(op: str, seed: object, offset: object, uniforms: object, greedy: bool, race: bool = False) -> None:
    """Raise if something is to be drawn, but no random numbers are given."""
    if seed is None and uniforms is None and offset is None and not greedy:
        needs = "a race needs seed, got None" if race else "needs seed and offset, or uniforms, got neither"
        raise ValueError(f"{op}: {needs}")
