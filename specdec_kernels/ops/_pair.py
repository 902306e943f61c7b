# SPDX-License-Identifier: Apache-2.0
"""Arguments of the ops that compare a target row with a draft row: p [N, V] and q [N, Vq], both logits or both
probabilities."""

from __future__ import annotations

from specdec_kernels.ops import _check, _rows


def sides(op, p, q):
    """Each side's rows and their stats, given or made; None for probabilities."""
    p, q = _rows.of_either(op, "p", p), _rows.of_either(op, "q", q)
    n, _ = _check.rows(op, "p.logits", p.logits, "N, V")
    m, vocabulary = _check.rows(op, "q.logits", q.logits, "N, Vq", p.logits.device)
    if m != n:
        _check.shape(op, "q.logits", q.logits, N=n, Vq=vocabulary)
    for name, side in (("p", p), ("q", q)):
        _check_fields(op, name, side)
    if p.kind != q.kind:
        raise ValueError(f"{op}: p.kind and q.kind must be the same, got {p.kind!r} and {q.kind!r}")
    if p.kind == "probs":
        return p.logits, None, q.logits, None
    return p.logits, _stats(op, "p", p, n), q.logits, _stats(op, "q", q, n)


def _stats(op, name, side, n):
    """A side's stats, given or made."""
    if side.stats is not None:
        return _check.stats(op, f"{name}.stats", side.stats, n, side.logits.device)
    return _rows.stats_of(side.logits, _rows.sampling(op, name, side, n), None)


def _check_fields(op, name, side):
    if side.row is not None:
        raise ValueError(f"{op}: {name}.row must be None, got a tensor")
    if side.kind == "probs" and (side.stats is not None or _rows.samples(side)):
        given = _rows.named(side) or "stats"
        raise ValueError(
            f"{op}: {name}.stats and sampling parameters go with logits, got {name}.kind 'probs' with {given}"
        )
    _rows.check_either(op, name, side)
