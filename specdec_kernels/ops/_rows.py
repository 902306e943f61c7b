# SPDX-License-Identifier: Apache-2.0
"""Checks of Rows, and their conversion to the arguments of the ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from specdec_kernels.allowed import Allowed
from specdec_kernels.bias import Bias
from specdec_kernels.ops import _call, _check
from specdec_kernels.penalties import Penalties
from specdec_kernels.registry import NOT_GIVEN, ROW_KINDS, SAMPLING
from specdec_kernels.rows import Rows
from specdec_kernels.vocab_map import VocabMap

row_stats = _call.op("row_stats")
_NO_SAMPLING = (None,) * 6
NO_PENALTIES, NO_BIAS, NO_MASK = (None,) * 7, (None,) * 3, (None,) * 2
_NO_VIEWS = (*NO_PENALTIES, *NO_BIAS, *NO_MASK, None)  # of an op that takes penalties.drafted
VIEWS, IDS = ("penalties", "bias", "allowed"), ("ids", "vocab_map")  # fields of Rows
_PARAMETERS = tuple(SAMPLING)
_MOST = 1e300  # penalties are clamped to this, which C++ still refuses, so that none equals NOT_GIVEN


def _tensor(op: str, name: str, x: Any) -> torch.Tensor:
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{op}: {name} must be a torch.Tensor or Rows, got {type(x).__name__}")
    return x


def of(op: str, name: str, x: Any) -> Rows:
    """Return x if it is Rows, or the Rows of a plain tensor."""
    if not isinstance(x, Rows):
        return Rows(_tensor(op, name, x))
    if not isinstance(x.logits, torch.Tensor):
        raise TypeError(f"{op}: {name}.logits must be a torch.Tensor, got {type(x.logits).__name__}")
    return x


def is_greedy(x: Rows | torch.Tensor) -> bool:
    """Return whether a single number as temperature makes every row greedy."""
    return isinstance(x, Rows) and _check.is_greedy(x.temperature)


def of_either(op: str, name: str, x: Any) -> Rows:
    """Return x as Rows of logits or of probabilities."""
    x = of(op, name, x)
    if not isinstance(x.kind, str) or x.kind != "logits":
        _check.choice(op, f"{name}.kind", x.kind, ROW_KINDS)
    return x


def named(rows: Rows) -> str:
    """Return the names of the given sampling parameters, with commas between them; "" if none is given."""
    return ", ".join(name for name in SAMPLING if getattr(rows, name) is not None)


def samples(rows: Rows) -> bool:
    """Return whether a sampling parameter is given."""
    return not (rows.temperature is rows.top_k is rows.top_p is rows.min_p is rows.top_n_sigma is None)


def refuse(op: str, name: str, rows: Rows, *fields: str) -> None:
    """Raise if a field that an op does not support is given."""
    for field in fields:
        value = getattr(rows, field)
        if value is not None:
            came = "a tensor" if isinstance(value, torch.Tensor) else type(value).__name__
            raise ValueError(f"{op}: {name}.{field} must be None, got {came}")


def ids(op: str, name: str, x: Rows) -> tuple:
    """Return (ids,), an op's last argument, or () if the side has none. A map without ids is passed as uint32."""
    if x.ids is None and x.vocab_map is None:
        return ()
    if x.ids is not None:
        _check.integers(op, f"{name}.ids", x.ids)
        if x.vocab_map is None:
            return (x.ids,)
    if not isinstance(x.vocab_map, VocabMap):
        came = type(x.vocab_map).__name__
        raise TypeError(f"{op}: {name}.vocab_map must be a VocabMap, which sk.vocab_map makes, got {came}")
    packed = _check.tensor(op, f"{name}.vocab_map.packed", x.vocab_map.packed)
    if x.ids is not None:
        if x.ids.device != packed.device:
            raise ValueError(f"{op}: {name}.vocab_map must be on {x.ids.device}, got {packed.device}")
        return (x.vocab_map.target_ids(x.ids),)
    Vq = x.logits.size(-1) if x.logits.dim() else 0
    if x.vocab_map.table.size(0) != Vq:
        got = x.vocab_map.table.size(0)
        raise ValueError(f"{op}: {name}.vocab_map must be of Vq={Vq} ids, as {name}.logits, got a map of {got}")
    return (packed.view(torch.uint32),)


def views(op: str, name: str, x: Rows, drafted: bool, positions: Callable = lambda: None) -> tuple:
    """Return the arguments of a side's views; () if the side has none.

    drafted: True if the op takes penalties.drafted. positions: a function that returns the shape of the positions,
    [B, G+1] or [B, N]; None if they have one dimension."""
    if x.penalties is None and x.bias is None and x.allowed is None:
        return ()
    of_penalties = NO_PENALTIES if x.penalties is None else _penalties(op, name, x, drafted)
    window = (None if x.penalties is None else x.penalties.drafted,) if drafted else ()
    for field, kind in (("bias", Bias), ("allowed", Allowed)):
        view = getattr(x, field)
        if view is not None and not isinstance(view, kind):
            raise TypeError(f"{op}: {name}.{field} must be {kind.__name__}, got {type(view).__name__}")
    ids, values, of_bias = x.bias or NO_BIAS
    bits, of_mask = x.allowed or NO_MASK
    ids = _lists(op, f"{name}.bias.ids", ids, of_bias, positions)
    values = _lists(op, f"{name}.bias.values", values, of_bias, positions)
    bits = _lists(op, f"{name}.allowed.bits", bits, of_mask, positions)
    return (*of_penalties, ids, values, of_bias, bits, of_mask, *window)


def _lists(op: str, name: str, x: Any, row: Any, positions: Callable) -> Any:
    """Return lists [S, n]. Lists given for each position, [*positions, n], are flattened. C++ checks other shapes."""
    if not isinstance(x, torch.Tensor) or x.dim() != 3 or row is not None:
        return x
    shape = positions()
    if shape is None:
        return x
    if x.shape[:2] != tuple(shape):
        wanted = ", ".join(map(str, shape))
        raise ValueError(f"{op}: {name} must have shape [S, n] or [{wanted}, n], got {list(x.shape)}")
    return x.flatten(0, 1)


def _penalties(op: str, name: str, x: Rows, drafted: bool) -> tuple:
    given = x.penalties
    if not isinstance(given, Penalties):
        raise TypeError(f"{op}: {name}.penalties must be Penalties, got {type(given).__name__}")
    marks = _marks(op, f"{name}.penalties", given)
    if not drafted and given.drafted is not None:
        raise ValueError(f"{op}: {name}.penalties.drafted must be None, got a tensor")
    amounts: list = [None] * 3
    numbers = None
    for i, value in enumerate(given[:3]):
        if value is None or isinstance(value, torch.Tensor):
            amounts[i] = value
            continue
        number = _check.python_number(value)
        if not isinstance(number, (int, float)) or isinstance(number, bool):
            wanted = f"{name}.penalties.{given._fields[i]} must be a number or a tensor"
            raise TypeError(f"{op}: {wanted}, got {type(value).__name__}")
        if number != number:  # C++ takes NaN for a missing number
            wanted = "finite and > 0" if i == 0 else "finite"
            raise ValueError(f"{op}: {name}.penalties.{given._fields[i]} must be {wanted}, got nan")
        if _check.is_traced():
            amounts[i] = _check.in_graph((number,), x.logits.device)
        else:
            numbers = numbers or [NOT_GIVEN] * 3
            numbers[i] = max(min(float(number), _MOST), -_MOST)
    return (*amounts, numbers, marks, given.counts, given.row)


def _marks(op: str, name: str, given: Penalties) -> Any:
    """Return the argument history_marks: the ids of lists, int32, or the prompt bits of tables as uint32."""
    bits = given.prompt_bits
    if (given.ids is None) == (bits is None):
        got = "none" if bits is None else "both"
        raise ValueError(f"{op}: {name}.counts must be given with ids or with prompt_bits, got {got}")
    if bits is None:
        return given.ids
    if not isinstance(bits, torch.Tensor):
        raise TypeError(f"{op}: {name}.prompt_bits must be a torch.Tensor, got {type(bits).__name__}")
    if bits.dtype != torch.int32:
        raise ValueError(f"{op}: {name}.prompt_bits must be int32, got {str(bits.dtype).removeprefix('torch.')}")
    return bits.view(torch.uint32)


def of_logits(op: str, name: str, x: Any, *, stats: bool = True, row: bool = False, takes_ids: bool = False) -> tuple:
    """Return the arguments of an op on rows of logits [N, V]: the logits, the six arguments of sampling(), stats, row,
    and a tuple with the arguments of views() and then of ids()."""
    if not isinstance(x, Rows):
        return _tensor(op, name, x), _NO_SAMPLING, None, None, ()
    x = of(op, name, x)
    if not isinstance(x.kind, str) or x.kind != "logits":
        raise ValueError(f"{op}: {name}.kind must be 'logits', got {_check.shown(x.kind)}")
    refuse(op, name, x, *("row",) * (not row), *("stats",) * (not stats), *IDS * (not takes_ids))
    of_views, of_ids = views(op, name, x, drafted=True), ids(op, name, x)
    if of_ids:
        of_views = (*(of_views or _NO_VIEWS), *of_ids)
    if x.stats is None:
        return x.logits, sampling(op, name, x), None, x.row, of_views
    check_either(op, name, x)
    return x.logits, _NO_SAMPLING, _check.contiguous(x.stats), x.row, of_views


def of_stats(rows: Rows | torch.Tensor, logits: torch.Tensor, stats: torch.Tensor | None) -> Rows:
    """Return Rows of logits and stats, with the views, ids and map of `rows`."""
    kept = {name: getattr(rows, name) for name in VIEWS + IDS} if isinstance(rows, Rows) else {}
    return Rows(logits, stats=stats, **kept)


def check_either(op: str, name: str, rows: Rows) -> None:
    """Raise if sampling parameters are given with stats, which already include them."""
    if rows.stats is not None and samples(rows):
        raise ValueError(f"{op}: {name}.stats already hold the sampling parameters, got {named(rows)} too")


def sampling(op: str, name: str, rows: Rows) -> Sequence:
    """Return the six arguments of an op for the five sampling parameters: five tensors, or None for a parameter that is
    no tensor, then a list of five numbers, or None if no number is given.

    While torch.compile traces, numbers become tensors too."""
    if not samples(rows):  # true of most calls, and cheap to test
        return _NO_SAMPLING
    values = rows.temperature, rows.top_k, rows.top_p, rows.min_p, rows.top_n_sigma
    taken: list = list(_NO_SAMPLING)
    traced = _check.is_traced()
    for i, x in enumerate(values):
        if x is None or isinstance(x, torch.Tensor):
            taken[i] = x
        elif traced:
            dtype = torch.int64 if _PARAMETERS[i] == "top_k" else torch.float32
            taken[i] = _check.in_graph((_number(op, name, _PARAMETERS[i], x),), rows.logits.device, dtype)
        else:
            numbers = taken[5] = taken[5] or [NOT_GIVEN] * 5
            numbers[i] = float(_number(op, name, _PARAMETERS[i], x))
    return taken


def _number(op: str, name: str, kind: str, x: Any) -> float:
    kinds = int if kind == "top_k" else (int, float)
    if not isinstance(x, kinds) or isinstance(x, bool):
        given, x = x, _check.python_number(x)
        if not isinstance(x, kinds) or isinstance(x, bool):
            raise TypeError(f"{op}: {name}.{kind} must be a number or a tensor, got {type(given).__name__}")
    if x not in SAMPLING[kind]:
        raise ValueError(f"{op}: {name}.{kind} must be {SAMPLING[kind].says}, got {_check.shown(x)}")
    return x


def stats_of(op: str, name: str, logits, sampling, stats, num_rows=None, views=(), ids=()) -> torch.Tensor:
    """Return the given stats, or compute them from the arguments that of_logits() returned; errors name this op.

    ids: as ids() returns them, if views do not end with them."""
    if stats is not None:
        return stats
    try:
        return row_stats(logits, *sampling, num_rows, *(_NO_VIEWS if ids and not views else views), *ids)
    except _call.REFUSED as error:
        raise _call.renamed(error, ("row_stats: rows.", f"{op}: {name}."), ("row_stats: ", f"{op}: ")) from None
