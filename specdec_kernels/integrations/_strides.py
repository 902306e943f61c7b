# SPDX-License-Identifier: Apache-2.0
"""Rows of engines whose kernels take any strides."""

import torch


def in_order(rows: torch.Tensor) -> torch.Tensor:
    """Return rows [..., V] whose entries are neighbours in memory: the same, or a copy."""
    return rows if rows.stride(-1) == 1 or rows.size(-1) <= 1 else rows.contiguous()
