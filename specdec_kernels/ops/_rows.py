# SPDX-License-Identifier: Apache-2.0
"""What the ops check of Rows, and how they take them apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from specdec_kernels.ops import _check
from specdec_kernels.registry import SAMPLING
from specdec_kernels.rows import Rows


def of(op: str, name: str, x: Any) -> Rows:
    """Rows as they came, or those of a plain tensor."""
    if isinstance(x, Rows):
        return x
    if isinstance(x, torch.Tensor):
        return Rows(x)
    raise TypeError(f"{op}: {name} must be a torch.Tensor or Rows, got {type(x).__name__}")


def named(rows: Rows) -> str:
    """The names of the sampling parameters that are given, in their order; empty if none is."""
    return ", ".join(
        name for name, x in zip(SAMPLING, (rows.temperature, rows.top_k, rows.top_p, rows.min_p)) if x is not None
    )


def samples(rows: Rows) -> bool:
    """Whether a sampling parameter is given."""
    return rows.temperature is not None or rows.top_k is not None or rows.top_p is not None or rows.min_p is not None


def of_logits(op: str, name: str, x: Any, *, stats: bool = True, row: bool = False) -> Rows:
    """Rows of logits [N, V] for an op that reads one row after another."""
    rows = of(op, name, x)
    _check.rows(op, f"{name}.logits", rows.logits, "N, V")
    if rows.kind != "logits":
        raise ValueError(f"{op}: {name}.kind must be 'logits', got {_check.shown(rows.kind)}")
    if rows.stats is not None and not stats:
        raise ValueError(f"{op}: {name}.stats must be None, got a tensor")
    if rows.row is not None and not row:
        raise ValueError(f"{op}: {name}.row must be None, got a tensor")
    check_either(op, name, rows)
    return rows


def check_either(op: str, name: str, rows: Rows) -> None:
    """Stats were made with the sampling parameters."""
    if rows.stats is not None and samples(rows):
        raise ValueError(f"{op}: {name}.stats already hold the sampling parameters, got {named(rows)} too")


def sampling(op: str, name: str, rows: Rows, n: int, device: torch.device) -> Sequence:
    """temperature, top_k, top_p, min_p and numbers, as the ops take them: see _check.sampling."""
    values = rows.temperature, rows.top_k, rows.top_p, rows.min_p
    tensors, numbers = _check.sampling(op, f"{name}.", values, n, device)
    return *tensors, numbers


def stats_of(op: str, name: str, rows: Rows, num_rows: torch.Tensor | None = None) -> torch.Tensor:
    """The stats [N, 4] of rows of logits [N, V], given or made."""
    n, device = rows.logits.size(0), rows.logits.device
    if rows.stats is not None:
        return _check.stats(op, f"{name}.stats", rows.stats, n, device)
    return torch.ops.specdec.row_stats.default(rows.logits, *sampling(op, name, rows, n, device), num_rows)
