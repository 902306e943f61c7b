# SPDX-License-Identifier: Apache-2.0
"""Rows of tokens as outcomes that can be counted."""

from __future__ import annotations

import operator

import numpy as np
import torch


def token_rows(op: str, tokens) -> np.ndarray:
    """Return a sampler's tokens as int64 [N, L] padded with -1. tokens: a tensor, an array or a list of token lists."""
    if isinstance(tokens, torch.Tensor):
        tokens = tokens.detach().cpu().numpy()
    elif not isinstance(tokens, np.ndarray):
        lists = [[operator.index(x) for x in row] for row in tokens]
        wide = max(map(len, lists), default=0)
        tokens = np.array([row + [-1] * (wide - len(row)) for row in lists], dtype=np.int64).reshape(len(lists), wide)
    if not np.issubdtype(tokens.dtype, np.integer):
        raise TypeError(f"{op}: tokens must be integers, got {tokens.dtype}")
    if tokens.ndim not in (1, 2):
        raise ValueError(f"{op}: tokens must have shape [N] or [N, L], got {list(tokens.shape)}")
    rows = (tokens if tokens.ndim == 2 else tokens[:, None]).astype(np.int64)
    if (rows < -1).any():
        row = rows[(rows < -1).any(1).argmax()].tolist()
        raise ValueError(f"{op}: tokens must be ids >= 0, or -1 as padding, got {row}")
    late = (rows[:, :-1] < 0) & (rows[:, 1:] >= 0)
    if late.any():
        row = rows[late.any(1).argmax()].tolist()
        raise ValueError(f"{op}: tokens must be padded with -1 at their end, got {row}")
    return rows


def distinct(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the distinct rows [M, L] of int64 [N, L], the index of each row among them [N], and their counts [M]."""
    code, bound = np.zeros(len(rows), dtype=np.int64), 1  # a number for each row, below bound <= 2^62
    for column in rows.T:
        column = column - column.min(initial=0)
        if column.max(initial=0) >= 1 << 31:
            column = np.unique(column, return_inverse=True)[1].reshape(-1)
        span = int(column.max(initial=0)) + 1
        if bound > (1 << 62) // span:
            code, bound = np.unique(code, return_inverse=True)[1].reshape(-1), len(rows)
        code, bound = code * span + column, bound * span
    _, first, which, counts = np.unique(code, return_index=True, return_inverse=True, return_counts=True)
    return rows[first], which.reshape(-1), counts


def outcome(row: np.ndarray) -> tuple[int, ...]:
    """Return a row without its padding."""
    return tuple(x for x in row.tolist() if x >= 0)


def count_outcomes(rows: np.ndarray) -> dict[tuple[int, ...], int]:
    found, _, counts = distinct(rows)
    return {outcome(row): n for row, n in zip(found, counts.tolist())}
