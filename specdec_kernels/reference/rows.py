# SPDX-License-Identifier: Apache-2.0
"""Conversion and slicing of Rows."""

import torch

from ..rows import Rows
from .entries import listed
from .padded import first

SAMPLING_FIELDS = slice(1, 6)  # of Rows: those of registry.SAMPLING


def rows_of(x, seen=True, draft=False):
    """Return x as Rows; None stays None. seen: whether the caller serves views. draft: whether x may be sparse or
    mapped; such Rows are converted by entries.listed()."""
    if x is None or not isinstance(x, Rows):
        return x if x is None else Rows(x)
    if not (seen or x.penalties is x.bias is x.allowed is None):
        raise NotImplementedError("views are not served on pairs of rows")
    if not (draft or x.ids is x.vocab_map is None):
        raise NotImplementedError("ids are served on draft rows only")
    return listed(x)


def first_sampling(rows, n):
    """Return the sampling parameters of the first n rows."""
    return first(n, *rows[SAMPLING_FIELDS])


def of_request(rows, b, take):
    """Return request b's Rows: take() of logits, stats and ids, with the request's own parameters."""
    own = (x[b] if torch.is_tensor(x) and x.dim() else x for x in rows[SAMPLING_FIELDS])
    stats, ids = (x if x is None else take(x) for x in (rows.stats, rows.ids))
    return Rows(take(rows.logits), *own, stats=stats, kind=rows.kind, ids=ids)
