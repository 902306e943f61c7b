# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence

import torch

from specdec_kernels.ops import _check, _rows
from specdec_kernels.registry import ROW_DTYPES, ROW_KINDS
from specdec_kernels.rows import Rows

_LOGITS = tuple(getattr(torch, name) for name in ROW_DTYPES)


def stack_rows(rows: Sequence[Rows]) -> Rows:
    """Stack the rows of a drafter's G steps, [B, V] each, as the [B, G, V] that ``verify_chain`` takes.

    The logits are copied. A drafter that writes step i to ``logits[:, i]`` of one buffer needs no copy.

    Args:
        rows: the ``.rows`` of G calls of ``sample``, or G Rows without stats and sampling parameters. All have the same
            shape, dtype and kind. Sparse rows: all have ``ids`` [B, E]. Mapped rows: all have the same ``vocab_map``.

    Returns:
        Rows: logits [B, G, V]; stats [B, G, 4] if the given rows have stats; ids [B, G, E] if they have ids.

    Raises:
        TypeError, ValueError: naming the argument, what was wanted and what came.

    Example:
        >>> z = torch.zeros(2, 8)
        >>> stack_rows([Rows(z), Rows(z)]).logits.shape
        torch.Size([2, 2, 8])
    """
    op = "stack_rows"
    if not isinstance(rows, (list, tuple)) or isinstance(rows, Rows) or not rows:
        raise TypeError(f"{op}: rows must be a list of at least one Rows, got {_check.shown(rows)}")
    given = [_rows.of(op, f"rows[{i}]", x) for i, x in enumerate(rows)]
    first, device = given[0], None
    for i, x in enumerate(given):
        _check_tensor(op, f"rows[{i}].logits", x.logits, _LOGITS, device)
        device = x.logits.device
        _check.dims(op, f"rows[{i}].logits", x.logits, "B, V")
        _check.choice(op, f"rows[{i}].kind", x.kind, ROW_KINDS)
        wanted, came = ((list(y.logits.shape), y.logits.dtype, y.kind) for y in (first, x))
        if wanted != came:
            wanted = "shape {}, dtype {} and kind {!r}, as rows[0]".format(*wanted)
            raise ValueError(f"{op}: rows[{i}] must have {wanted}, got {came[0]}, {came[1]} and {came[2]!r}")
        _rows.refuse(op, f"rows[{i}]", x, *_rows.VIEWS, "row")
        _check_ids(op, f"rows[{i}]", x, first)
        _rows.check_either(op, f"rows[{i}]", x)
        if (x.stats is None) != (first.stats is None) or (x.stats is None and _rows.named(x)):
            wanted = "have stats, as sample returns them, or neither stats nor sampling parameters"
            came = _rows.named(x) or ("no stats" if x.stats is None else "stats")
            raise ValueError(f"{op}: rows must all {wanted}, got {came} in rows[{i}]")
        if x.stats is not None:
            _check_tensor(op, f"rows[{i}].stats", x.stats, (torch.float32,), device)
            _check.shape(op, f"rows[{i}].stats", x.stats, N=x.logits.size(0), **{"4": 4})
    logits = torch.stack([x.logits for x in given], 1)
    stats, ids = (
        None if getattr(first, field) is None else torch.stack([getattr(x, field) for x in given], 1)
        for field in ("stats", "ids")
    )
    return Rows(logits, stats=stats, kind=first.kind, ids=ids, vocab_map=first.vocab_map)


def _check_ids(op, name, x, first):
    """Check that the rows agree with the first one in having ids, and have the same map."""
    if (x.ids is None) != (first.ids is None):
        came = "no ids" if x.ids is None else "ids"
        raise ValueError(f"{op}: rows must all have ids, or none of them, got {came} in {name}")
    if x.vocab_map is not first.vocab_map:
        raise ValueError(f"{op}: {name}.vocab_map must be that of rows[0], got another")
    if x.ids is not None:
        _check_tensor(op, f"{name}.ids", x.ids, (torch.int32, torch.int64), x.logits.device)
        _check.shape(op, f"{name}.ids", x.ids, N=x.logits.size(0), E=x.logits.size(1))


def _check_tensor(op, name, x, dtypes, device):
    """Check a tensor's dtype and device, with the errors that an op would raise."""
    _check.dtype(op, name, x, *dtypes)
    if device is not None and x.device != device:
        raise ValueError(f"{op}: {name} must be on {device}, got {x.device}")
