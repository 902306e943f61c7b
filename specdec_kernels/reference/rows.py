# SPDX-License-Identifier: Apache-2.0
"""Conversion and slicing of Rows."""

import torch

from ..rows import Rows
from .padded import first

SAMPLING_FIELDS = slice(1, 6)  # of Rows: those of registry.SAMPLING


def rows_of(x, seen=True):
    """Return x as Rows; None stays None. seen: whether the caller serves views."""
    rows = x if x is None or isinstance(x, Rows) else Rows(x)
    if rows is not None and not (seen or rows.penalties is rows.bias is rows.allowed is None):
        raise NotImplementedError("views are not served on pairs of rows")
    return rows


def first_sampling(rows, n):
    """Return the sampling parameters of the first n rows."""
    return first(n, *rows[SAMPLING_FIELDS])


def of_request(rows, b, take):
    """Return request b's Rows: take() of logits and stats, with the request's own parameters."""
    own = (x[b] if torch.is_tensor(x) and x.dim() else x for x in rows[SAMPLING_FIELDS])
    return Rows(take(rows.logits), *own, stats=None if rows.stats is None else take(rows.stats), kind=rows.kind)
