# SPDX-License-Identifier: Apache-2.0
"""Code that verify_chain and verify_tree share: arguments from the Rows of both sides, results in given tensors."""

from __future__ import annotations

import torch

from specdec_kernels.ops import _check, _rows
from specdec_kernels.registry import ROW_KINDS

_NO_VIEWS = (*_rows.NO_PENALTIES, *_rows.NO_BIAS, *_rows.NO_MASK)
_NO_ROWS = (*(None,) * 8, ROW_KINDS["logits"], None)


def flat(op, name, rows, by_rule):
    """Return the arguments of one side, in the op's order. rows None: a draft without rows."""
    if rows is None:
        return _NO_ROWS
    _rows.check_either(op, name, rows)
    sampling = _rows.sampling(op, name, rows)
    return (rows.logits, *sampling, _check.contiguous(rows.stats), _code(op, name, rows, by_rule), rows.row)


def views(op, target, draft, positions):
    """Return the arguments of both sides' views and the ids of the draft's entries, which end the op's arguments.

    They are () if neither side has any. positions: as in _rows.views."""
    _rows.refuse(op, "target", target, *_rows.IDS)
    of_target = _rows.views(op, "target", target, False, positions)
    of_draft, ids = (), ()
    if draft is not None:
        of_draft, ids = _rows.views(op, "draft", draft, False, positions), _rows.ids(op, "draft", draft)
    if ids and not of_draft:
        of_draft = _NO_VIEWS
    return (*(of_target or _NO_VIEWS), *of_draft, *ids) if of_target or of_draft else ()


def _code(op, name, rows, by_rule):
    """Return the code of a side's kind.

    At temperature 0 the exact rule needs only the largest entry of each row, so probabilities can pass as logits."""
    if rows.kind == "logits" or not _is_greedy(rows):
        return ROW_KINDS[rows.kind]
    if by_rule:  # a rule may need probabilities, and would take these for logits
        raise ValueError(f"{op}: temperature 0 of {name}.kind='probs' needs rule 'exact', got another one")
    return ROW_KINDS["logits"]


def _is_greedy(rows):
    return _check.is_greedy(rows.temperature) and not _rows.samples(rows._replace(temperature=None))


def write(op, kind, run, arguments, out):
    """Return the caller's tensors `out` as a `kind`, after run() has written the results to them."""
    if not isinstance(out, (tuple, list)) or len(out) != len(kind._fields):
        came = f"{len(out)} of them" if isinstance(out, (tuple, list)) else type(out).__name__
        raise TypeError(f"{op}: out must be ({', '.join(kind._fields)}), got {came}")
    run(*arguments, **dict(zip(kind._fields, out)))
    if not torch.compiler.is_compiling():
        torch.autograd.graph.increment_version(out)  # autograd must see that they were changed
    return kind(*out)
