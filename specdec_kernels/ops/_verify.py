# SPDX-License-Identifier: Apache-2.0
"""The arguments that verify_chain and verify_tree share: rows of two sides, each with its kind and its stats or its
sampling parameters (temperature, top_k, top_p, min_p)."""

from __future__ import annotations

import torch

from specdec_kernels.ops import _check
from specdec_kernels.registry import ROW_KINDS


def check_kinds(op, target_kind, draft_kind):
    _check.choice(op, "target_kind", target_kind, ROW_KINDS)
    _check.choice(op, "draft_kind", draft_kind, ROW_KINDS)


def are_given(temperature, top_k, top_p, min_p):
    return temperature is not None or top_k is not None or top_p is not None or min_p is not None


def check_rows(op, side, rows, want, row, device=None):
    """One side's rows, of as many dimensions as `want` names; or of a store's, and `row` says where they are."""
    if row is None:
        return _check.rows(op, f"{side}_logits", rows, want, device)
    _check.tensor(op, f"{side}_logits", rows, _check.LOGITS, device)
    lead, V = want.rsplit(", ", 1)
    if rows.dim() not in (2, 3):
        wanted = f"{side}_logits must have shape [N, {V}] or [S, K, {V}] where {side}_row is given"
        raise ValueError(f"{op}: {wanted}, got {list(rows.shape)}")
    _check.rows(op, f"{side}_logits", rows, f"N, {V}" if rows.dim() == 2 else f"S, K, {V}")
    _check.tensor(op, f"{side}_row", row, _check.INTEGERS, rows.device)
    return _check.dims(op, f"{side}_row", row, lead)


def check_shape(op, name, x, rows, last, size):
    """x has the sizes of `rows` and then one more. The names are put together for the few calls that fail alone."""
    if x.shape != (*rows.values(), size):
        _check.shape(op, name, x, **rows, **{last: size})


def stored(op, side, rows, row, positions):
    """The shape of a store of rows, named; `row` has a number for each of the positions."""
    _check.shape(op, f"{side}_row", row, **positions)
    return dict(zip(("N",) if rows.dim() == 2 else ("S", "K"), rows.shape))


def check_no_draft(op, stats, row, parameters):
    """One-hot drafts have nothing that tells of rows."""
    if stats is None and row is None and not are_given(*parameters):
        return
    given = "draft_stats" if stats is not None else "draft_row" if row is not None else ""
    wanted = "draft_row, draft_stats and draft_temperature ... draft_min_p need draft_logits"
    raise ValueError(f"{op}: {wanted}, got None with {given or _check.given('draft_', *parameters)}")


def stats_of(op, side, kind, stats, parameters, rows, device):
    """One side's stats, checked against its kind and its sampling parameters."""
    given = are_given(*parameters) and _check.given("" if side == "target" else "draft_", *parameters)
    if kind == "probs" and (stats is not None or (given and not _are_greedy(*parameters))):
        what = given or f"{side}_stats"
        raise ValueError(
            f"{op}: {side} stats and sampling parameters need {side}_kind='logits', got 'probs' with {what}"
        )
    if stats is None:
        return None
    if given:
        raise ValueError(f"{op}: {side}_stats already hold the sampling parameters, got {given} too")
    _check.floats(op, f"{side}_stats", stats, _check.FLOAT32, device)
    check_shape(op, f"{side}_stats", stats, rows, "4", 4)
    return stats.contiguous()


def _are_greedy(temperature, *filters):
    """Whether nothing is asked but the largest entry of each row: of probabilities it is where that of logits is."""
    return _check.is_greedy(temperature) and all(x is None for x in filters)


def _code(op, side, kind, parameters, by_rule):
    """Of a kind that stats_of() has checked."""
    if kind == "probs" and are_given(*parameters):
        if by_rule:  # it would ask how sure the model is, and not of logits
            raise ValueError(f"{op}: temperature 0 of {side}_kind='probs' needs rule 'exact', got another one")
        kind = "logits"
    return ROW_KINDS[kind]


def sides(op, n, device, target, target_stats, target_kind, draft, draft_stats, draft_kind, by_rule):
    """Of both sides, in the op's order: parameters and stats, then the kinds; and the parameters that are numbers."""
    of_target, numbers = _check.sampling(op, "", target, n, device)
    of_draft, draft_numbers = _check.sampling(op, "draft_", draft, n, device)
    if numbers or draft_numbers:
        numbers = (*(numbers or _NO_NUMBERS), *(draft_numbers or _NO_NUMBERS))
    kinds = _code(op, "target", target_kind, target, by_rule), _code(op, "draft", draft_kind, draft, by_rule)
    return (*of_target, target_stats, draft_stats, *of_draft, *kinds), numbers


_NO_NUMBERS = (_check.NOT_GIVEN,) * 4


def run(op, kind, arguments, out, B, depth):
    """The op's results, as `kind` names them, or the caller's tensors `out` after it has written to them."""
    call = getattr(torch.ops.specdec, op)
    if out is None:
        return kind(*call.default(*arguments))  # not the packet, which looks for the overload anew
    call.out(*arguments, **_results(op, kind, out, B, depth, arguments))
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
