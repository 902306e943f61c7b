# SPDX-License-Identifier: Apache-2.0
"""The arguments that verify_chain and verify_tree share: the Rows of two sides."""

from __future__ import annotations

import torch

from specdec_kernels.ops import _check, _rows
from specdec_kernels.registry import ROW_KINDS


def check_rows(op, name, rows, want, device=None):
    """One side's rows, of as many dimensions as `want` names; or of a store's, and `row` says where they are. Returns
    the shape of what has one entry for each position."""
    logits, row = rows.logits, rows.row
    if row is None:
        return _check.rows(op, f"{name}.logits", logits, want, device)
    _check.tensor(op, f"{name}.logits", logits, _check.LOGITS, device)
    lead, V = want.rsplit(", ", 1)
    if logits.dim() not in (2, 3):
        wanted = f"{name}.logits must have shape [N, {V}] or [S, K, {V}] where {name}.row is given"
        raise ValueError(f"{op}: {wanted}, got {list(logits.shape)}")
    _check.rows(op, f"{name}.logits", logits, f"N, {V}" if logits.dim() == 2 else f"S, K, {V}")
    _check.tensor(op, f"{name}.row", row, _check.INTEGERS, logits.device)
    _check.dims(op, f"{name}.row", row, lead)
    return row.shape


def check_shape(op, name, x, rows, last, size):
    """x has the sizes of `rows` and then one more. The names are put together for the few calls that fail alone."""
    if x.shape != (*rows.values(), size):
        _check.shape(op, name, x, **rows, **{last: size})


def stored(op, name, rows, positions):
    """The shape of a store of rows, named; `row` has a number for each of the positions."""
    _check.shape(op, f"{name}.row", rows.row, **positions)
    return dict(zip(("N",) if rows.logits.dim() == 2 else ("S", "K"), rows.logits.shape))


def check_stats(op, name, rows, shape, device):
    """One side with its stats, checked against its kind, its sampling parameters and the shape of its rows."""
    if rows.kind == "probs" and (rows.stats is not None or (_rows.samples(rows) and not _are_greedy(rows))):
        given = _rows.named(rows) or "stats"
        wanted = f"{name}.stats and sampling parameters need {name}.kind='logits'"
        raise ValueError(f"{op}: {wanted}, got 'probs' with {given}")
    if rows.stats is None:
        return rows
    _rows.check_either(op, name, rows)
    _check.floats(op, f"{name}.stats", rows.stats, _check.FLOAT32, device)
    check_shape(op, f"{name}.stats", rows.stats, shape, "4", 4)
    return rows._replace(stats=rows.stats.contiguous())


def _are_greedy(rows):
    """Whether nothing is asked but the largest entry of each row: of probabilities it is where that of logits is."""
    return _check.is_greedy(rows.temperature) and rows.top_k is None and rows.top_p is None and rows.min_p is None


def _code(op, name, rows, by_rule):
    """The number of a kind that check_stats() has checked."""
    kind = rows.kind
    if kind == "probs" and _rows.samples(rows):
        if by_rule:  # it would ask how sure the model is, and not of logits
            raise ValueError(f"{op}: temperature 0 of {name}.kind='probs' needs rule 'exact', got another one")
        kind = "logits"
    return ROW_KINDS[kind]


def flat(op, name, n, rows, by_rule):
    """One side in the op's order; None is a draft without rows."""
    if rows is None:
        return _NO_ROWS
    sampling = _rows.sampling(op, name, rows, n)
    return (rows.logits, *sampling, rows.stats, _code(op, name, rows, by_rule), rows.row)


_NO_ROWS = (*(None,) * 7, ROW_KINDS["logits"], None)


def write(op, kind, arguments, out, B, depth):
    """The caller's tensors `out`, as `kind` names them, after the op has written to them."""
    getattr(torch.ops.specdec, op).out(*arguments, **_results(op, kind, out, B, depth, arguments))
    if not torch.compiler.is_compiling():
        torch.autograd.graph.increment_version(out)  # what autograd has saved of them is no longer what it was
    return kind(*out)


def _results(op, kind, out, B, depth, arguments):
    """The caller's tensors by name, checked."""
    device = next(x.device for x in arguments if isinstance(x, torch.Tensor))
    tokens = {"B": B, ("D+1" if "path" in kind._fields else "G+1"): depth + 1}
    forms = {
        "tokens": (_check.INTEGERS, tokens),
        "num_accepted": (_check.INT32, {"B": B}),
        "logprobs": (_check.FLOAT32, tokens),
        "status": (_check.INT32, {"B": B}),
        "path": (_check.INT32, tokens),
    }
    if not isinstance(out, (tuple, list)) or len(out) != len(kind._fields):
        came = f"{len(out)} of them" if isinstance(out, (tuple, list)) else type(out).__name__
        raise TypeError(f"{op}: out must be ({', '.join(kind._fields)}), got {came}")
    for name, x in zip(kind._fields, out):
        dtypes, shape = forms[name]
        _check.tensor(op, f"out.{name}", x, dtypes, device)
        _check.shape(op, f"out.{name}", x, **shape)
        if not x.is_contiguous():
            raise ValueError(f"{op}: out.{name} must be contiguous, got strides {list(x.stride())}")
    return dict(zip(kind._fields, out))
