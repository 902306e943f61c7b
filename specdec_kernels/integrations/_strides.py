# SPDX-License-Identifier: Apache-2.0
"""Copies of rows whose entries are not adjacent in memory, which engines' kernels take but our ops do not."""

import torch


def in_order(rows: torch.Tensor) -> torch.Tensor:
    """Return rows [..., V] whose entries are adjacent in memory: the given ones, or a copy."""
    return rows if rows.stride(-1) == 1 or rows.size(-1) <= 1 else rows.contiguous()
