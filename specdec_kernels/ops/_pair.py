# SPDX-License-Identifier: Apache-2.0
"""Arguments of the ops that compare a target row with a draft row: p [N, V] and q [N, Vq], both logits or both
probabilities."""

from __future__ import annotations

from specdec_kernels.ops import _check, _rows


def sides(op, p, q):
    """Return p's rows and stats, q's rows and stats, and a tuple with the ids of q's entries (see _rows.ids).

    Stats that are not given are computed. For probabilities they are None."""
    p, q = _rows.of_either(op, "p", p), _rows.of_either(op, "q", q)
    for name, side in (("p", p), ("q", q)):
        _check_fields(op, name, side)
    if p.kind != q.kind:
        raise ValueError(f"{op}: p.kind and q.kind must be the same, got {p.kind!r} and {q.kind!r}")
    _rows.refuse(op, "p", p, *_rows.IDS)
    ids = _rows.ids(op, "q", q)
    if p.kind == "probs":
        return p.logits, None, q.logits, None, ids
    return p.logits, _stats(op, "p", p), q.logits, _stats(op, "q", q, ids), ids


def _stats(op, name, side, ids=()):
    sampling = _rows.sampling(op, name, side)
    return _rows.stats_of(op, name, side.logits, sampling, _check.contiguous(side.stats), ids=ids)


def _check_fields(op, name, side):
    _rows.refuse(op, name, side, *_rows.VIEWS, "row")
    if side.kind == "probs" and (side.stats is not None or _rows.samples(side)):
        raise ValueError(f"{op}: {name}.stats and sampling parameters need {name}.kind='logits', got 'probs'")
    _rows.check_either(op, name, side)
