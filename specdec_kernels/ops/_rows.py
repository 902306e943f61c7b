# SPDX-License-Identifier: Apache-2.0
"""What the ops check of Rows, and how they take them apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from specdec_kernels.ops import _check
from specdec_kernels.registry import NOT_GIVEN, ROW_KINDS, SAMPLING
from specdec_kernels.rows import Rows

_row_stats = torch.ops.specdec.row_stats.default
_NO_SAMPLING = (None,) * 5
_PARAMETERS = tuple(SAMPLING)


def _tensor(op: str, name: str, x: Any) -> torch.Tensor:
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{op}: {name} must be a torch.Tensor or Rows, got {type(x).__name__}")
    return x


def of(op: str, name: str, x: Any) -> Rows:
    """Rows as they came, or those of a plain tensor."""
    return x if isinstance(x, Rows) else Rows(_tensor(op, name, x))


def is_greedy(x: Rows | torch.Tensor) -> bool:
    """Whether one number makes every row greedy."""
    return isinstance(x, Rows) and _check.is_greedy(x.temperature)


def of_either(op: str, name: str, x: Any) -> Rows:
    """Rows of logits or of probabilities."""
    if not isinstance(x, Rows):
        return Rows(_tensor(op, name, x))
    _check.choice(op, f"{name}.kind", x.kind, ROW_KINDS)
    return x


def named(rows: Rows) -> str:
    """The names of the sampling parameters that are given, in their order; empty if none is."""
    return ", ".join(name for name, x in zip(SAMPLING, rows[1:5]) if x is not None)


def samples(rows: Rows) -> bool:
    """Whether a sampling parameter is given."""
    return rows.temperature is not None or rows.top_k is not None or rows.top_p is not None or rows.min_p is not None


def of_logits(op: str, name: str, x: Any, *, stats: bool = True, row: bool = False) -> tuple:
    """Rows of logits [N, V] for an op that reads one row after another, taken apart: the logits, N, the five arguments
    of sampling(), stats and row."""
    if not isinstance(x, Rows):
        n, _ = _check.rows(op, f"{name}.logits", _tensor(op, name, x), "N, V")
        return x, n, _NO_SAMPLING, None, None
    logits = x.logits
    n, _ = _check.rows(op, f"{name}.logits", logits, "N, V")
    if x.kind != "logits":
        raise ValueError(f"{op}: {name}.kind must be 'logits', got {_check.shown(x.kind)}")
    if x.row is not None and not row:
        raise ValueError(f"{op}: {name}.row must be None, got a tensor")
    if x.stats is None:
        return logits, n, sampling(op, name, x, n), None, x.row
    if not stats:
        raise ValueError(f"{op}: {name}.stats must be None, got a tensor")
    check_either(op, name, x)
    return logits, n, _NO_SAMPLING, _check.stats(op, f"{name}.stats", x.stats, n, logits.device), x.row


def check_either(op: str, name: str, rows: Rows) -> None:
    """Stats were made with the sampling parameters."""
    if rows.stats is not None and samples(rows):
        raise ValueError(f"{op}: {name}.stats already hold the sampling parameters, got {named(rows)} too")


def sampling(op: str, name: str, rows: Rows, n: int) -> Sequence:
    """temperature, top_k, top_p, min_p, each None, one number for all, or a tensor with one value per row, as the ops
    take them: four tensors [n] or [1], and four numbers; None where no number is given."""
    temperature, top_k, top_p, min_p = values = rows[1:5]
    if temperature is None and top_k is None and top_p is None and min_p is None:  # most calls, and soon known
        return _NO_SAMPLING
    taken: list = list(_NO_SAMPLING)
    traced = _check.is_traced()
    for i, x in enumerate(values):
        if x is None:
            continue
        if isinstance(x, torch.Tensor):
            taken[i] = _per_row(op, f"{name}.{_PARAMETERS[i]}", x, n, rows.logits.device)
        elif traced:
            dtype = torch.int64 if _PARAMETERS[i] == "top_k" else torch.float32
            taken[i] = _check.in_graph((_number(op, name, _PARAMETERS[i], x),), rows.logits.device, dtype)
        else:
            numbers = taken[4] = taken[4] or [NOT_GIVEN] * 4
            numbers[i] = float(_number(op, name, _PARAMETERS[i], x))
    return taken


def _per_row(op: str, name: str, x: torch.Tensor, n: int, device: torch.device) -> torch.Tensor:
    _check.floats(op, name, x, _check.INTEGERS if name.endswith("top_k") else _check.FLOAT32, device)
    if x.shape not in ((n,), (1,)):
        raise ValueError(f"{op}: {name} must be a number or have shape [{n}], got {list(x.shape)}")
    return x


def _number(op: str, name: str, kind: str, x: Any) -> float:
    kinds = int if kind == "top_k" else (int, float)
    if not isinstance(x, kinds) or isinstance(x, bool):
        given, x = x, _check.python_number(x)
        if not isinstance(x, kinds) or isinstance(x, bool):
            raise TypeError(f"{op}: {name}.{kind} must be a number or a tensor, got {type(given).__name__}")
    if x not in SAMPLING[kind]:
        raise ValueError(f"{op}: {name}.{kind} must be {SAMPLING[kind].says}, got {_check.shown(x)}")
    return x


def stats_of(logits, sampling, stats, num_rows=None) -> torch.Tensor:
    """The stats of what of_logits() has taken apart, given or made."""
    return _row_stats(logits, *sampling, num_rows) if stats is None else stats
