# SPDX-License-Identifier: Apache-2.0
"""Checks and conversion of the rows of probabilities that the functions of this package take."""

import torch

__all__ = ["float64_rows"]


def float64_rows(op, p, q, k):
    """Check k, and the dtypes and shapes of p and q. Return p and q in float64, padded with zeros to one width."""
    if k != int(k) or k < 1:
        raise ValueError(f"{op}: k must be an integer >= 1, got {k}")
    for name, x in (("p", p), ("q", q)):
        if not x.is_floating_point():
            raise TypeError(f"{op}: {name} must be a floating-point tensor, got {x.dtype}")
    if p.shape[:-1] != q.shape[:-1]:
        raise ValueError(f"{op}: q must have leading shape {list(p.shape[:-1])}, got {list(q.shape[:-1])}")
    wide = max(p.size(-1), q.size(-1))
    return tuple(torch.nn.functional.pad(x.double().cpu(), (0, wide - x.size(-1))) for x in (p, q))
