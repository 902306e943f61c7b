# SPDX-License-Identifier: Apache-2.0
"""Arguments of the ops that compare a target row with a draft row: p [N, V], q [N, Vq], a kind, and the stats of
logits."""

from __future__ import annotations

from specdec_kernels.ops import _check
from specdec_kernels.ops.row_stats import row_stats
from specdec_kernels.registry import ROW_KINDS


def check_rows(op, p, q, kind):
    _check.rows(op, "p", p, "N, V")
    _check.rows(op, "q", q, "N, Vq", p.device)
    _check.shape(op, "q", q, N=p.size(0), Vq=q.size(1))
    _check.choice(op, "kind", kind, ROW_KINDS)


def stats(op, p, q, kind, p_stats, q_stats):
    """Both rows' stats: given, made at temperature 1 without filters, or None for probabilities."""
    given = {"p_stats": p_stats, "q_stats": q_stats}
    for name, x in given.items():
        if x is None:
            continue
        if kind == "probs":
            raise ValueError(f"{op}: {name} goes with logits, got kind 'probs'")
        given[name] = _check.stats(op, name, x, p.size(0), p.device)
    if kind == "probs":
        return None, None
    return tuple(row_stats(rows) if x is None else x for x, rows in zip(given.values(), (p, q)))
