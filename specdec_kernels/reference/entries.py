# SPDX-License-Identifier: Apache-2.0
"""Sparse and mapped draft rows: entry j of a row stands for the target id ids[j], or for none if that is negative.

Views, temperature and filters act on the entries one by one. Then q(v) is the sum over the entries of id v.
"""

import math
from functools import singledispatch

import numpy as np
import torch

IDS_END = 1 << 24


def listed(rows):
    """Return sparse or mapped Rows with the target id of each entry in `ids`. An entry without an id becomes -inf."""
    if rows.ids is None and rows.vocab_map is None:
        return rows
    shape = rows.logits.shape
    ids = torch.arange(shape[-1], device="cpu").expand(shape) if rows.ids is None else rows.ids.long()
    if rows.vocab_map is not None:
        table = rows.vocab_map.table.long()
        ids = torch.where((ids >= 0) & (ids < len(table)), table[ids.clamp(0, len(table) - 1)], -1)
    ids = torch.where((ids >= 0) & (ids < IDS_END), ids, -1)
    return rows._replace(logits=rows.logits.masked_fill(ids < 0, -math.inf), ids=ids, vocab_map=None)


def width_of(rows):
    """Return the largest id of a draft's rows plus 1; 0 without any."""
    if rows is None:
        return 0
    if rows.ids is None:
        return rows.logits.shape[-1]
    return int(rows.ids.max()) + 1 if rows.ids.numel() else 0


def renumbered(tokens, wide):
    """Return the tokens with ids of `wide` or more numbered wide, wide + 1, ... in ascending order, and the new width.

    This keeps rows short. No row lists such an id, so p is 0 there, and it is never emitted."""
    numbers = {v: wide + i for i, v in enumerate(sorted({v for v in tokens if wide <= v < IDS_END}))}
    return [numbers.get(v, v) for v in tokens], wide + len(numbers)


def places_of(n, ids=None):
    """Return a function from an id to the places of its entries in a row of n entries. ids: [n]; None: entry v has id
    v."""
    if ids is None:
        return lambda v: [v] if 0 <= v < n else []
    places = {}
    for at, v in enumerate(ids):
        places.setdefault(v, []).append(at)
    return lambda v: places.get(v, []) if v >= 0 else []


def with_id(stats, ids):
    """Return a row's stats. If the row is greedy, the place of its largest entry is replaced by that entry's id."""
    return changed(stats, lambda at: ids[at])


def with_place(stats, ids):
    """Return the stats with a greedy row's id replaced by the first place of that id."""
    return changed(stats, lambda v: np.flatnonzero(ids == v)[0])


def changed(stats, number):
    scale, cutoff, log_norm, top = stats
    if math.isinf(scale) and not math.isnan(log_norm):
        log_norm = float(number(int(log_norm)))
    return scale, cutoff, log_norm, top


def law_of_ids(law, z, ids):
    """Return the Law over target ids, given the Law over the entries z of a row."""
    width = int(ids.max()) + 1
    fallback = int(ids[law.fallback]) if np.isfinite(z[law.fallback]) else 0
    log_p = None
    if law.log_p is not None:
        log_p = np.full(width, -np.inf)
        np.logaddexp.at(log_p, ids[ids >= 0], law.log_p[ids >= 0])
    return law._replace(p=summed(law.p, ids, width), fallback=fallback, log_p=log_p)


@singledispatch
def summed(row, ids, width):
    """Return the sums over the entries of each id in [0, width)."""
    return np.bincount(ids[ids >= 0], row[ids >= 0], width)
