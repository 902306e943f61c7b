# SPDX-License-Identifier: Apache-2.0
"""A check whether an op supports a kind of call on this machine, without making the call."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from specdec_kernels import backends, registry
from specdec_kernels.allowed import Allowed
from specdec_kernels.bias import Bias
from specdec_kernels.ops import _call
from specdec_kernels.penalties import Penalties
from specdec_kernels.rows import Rows
from specdec_kernels.vocab_map import VocabMap

_V = 1 << 17  # entries of a row; the tensors have no memory


class Supports(NamedTuple):
    """The result of ``supports``: ``ok``, and if it is False the reason in words."""

    ok: bool
    reason: str | None = None

    def __bool__(self) -> bool:
        return self.ok


def supports(
    op: str,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    strides: Sequence[int] | None = None,
    kind: str = "logits",
    views: Sequence[str] = (),
    draft: bool = True,
    draft_kind: str | None = None,
    draft_dtype: torch.dtype | None = None,
    draft_views: Sequence[str] = (),
    **arguments: Any,
) -> Supports:
    """Return whether an op supports a kind of call on this machine. Nothing is run.

    For an op that reads rows, the checks of a real call run on tensors without memory: one row, or one request with one
    draft. For other ops only the device is checked. Numbers among ``arguments`` are checked; sizes and values of
    tensors are not. A check takes about a millisecond. The first one takes seconds, since torch imports its tracing
    modules, so make it when the engine starts.

    Args:
        op: the name of a public function, such as "verify_chain".
        device: the device of the call's tensors.
        dtype: the dtype of logits or probabilities.
        strides: the strides of the rows, as from ``logits.stride()``; only the last is checked. None: contiguous.
        kind: "logits" or "probs", as in ``Rows``.
        views: fields of ``Rows`` that the target's rows have, such as "penalties", "allowed", "top_k" or "row". For an
            op with only one argument of rows: the fields of that argument.
        draft: False for one-hot drafts, which have no rows.
        draft_kind, draft_dtype: kind and dtype of the draft's rows. None: the same as the target's.
        draft_views: the same as ``views`` for the draft's rows.
        arguments: other arguments of the public function, such as ``method="race"``, ``rule="lossy"`` or ``k=4``.

    Returns:
        Supports: ``ok`` and ``reason``. If ``ok`` is False, the reason is the text of the error that such a call
        raises, or what this installation lacks; otherwise it is None. ``bool()`` of the result is ``ok``.

    Raises:
        ValueError: there is no such op, no such field of ``Rows``, or the op has no argument of that name; views or
            strides for an op that reads no rows.

    Example:
        >>> supports("verify_chain", dtype=torch.bfloat16, views=["penalties", "top_p"], method="block").ok
        True
        >>> supports("row_stats", dtype=torch.float64).reason
        'row_stats: rows.logits must be float32, bfloat16 or float16, got float64'
    """
    if op not in registry.FUNCTIONS:
        raise ValueError(f"supports: op must be one of {', '.join(registry.FUNCTIONS)}, got {op}")
    for name in (*views, *draft_views):
        if name not in _FIELDS:
            raise ValueError(f"supports: views must be among {', '.join(_FIELDS)}, got {name}")
    if op not in _CALLS and (views or draft_views or strides is not None):
        raise ValueError(f"supports: {op} reads no rows, so it takes no views, draft_views or strides")
    unknown = arguments.keys() - inspect.signature(_function(op)).parameters
    if unknown:
        raise ValueError(f"supports: {op} has no argument {', '.join(sorted(unknown))}")
    device = torch.device(device)
    reason = _device(device)
    if reason is not None:
        return Supports(False, f"{op}: {reason}")
    if op not in _CALLS:
        return Supports(True)
    if backends.chosen() == "cuda" and device.type == "cuda" and {"ids", "vocab_map"} & {*draft_views}:
        if not backends.cuda_reads_ids():
            return Supports(False, f"{op}: the CUDA ops were built with SPECDEC_CUDA_IDS=0")
    with torch.device("meta"), _Refuser(op, device):
        step = 1 if strides is None else strides[-1]
        first = _Side(dtype, step, kind, tuple(views))
        second = _Side(draft_dtype or dtype, step, draft_kind or kind, tuple(draft_views))
        given = _CALLS[op](first, second if draft else None) | arguments
        try:
            _function(op)(**given)
        except _call.REFUSED as error:
            return Supports(False, str(error))
    return Supports(True)


def _device(device: torch.device) -> str | None:
    """Return why no ops run on tensors of this device; None if they do."""
    name = backends.chosen()
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        return f"tensors must be on the CPU or a GPU, got {device}"
    if name == "cpu":
        return f"no ops for GPUs: {backends.lacks('cuda') or backends.lacks('triton') or 'SPECDEC_BACKEND=cpu'}"
    return None if name in backends.available() else backends.misfit() or "no GPU was found"


def _function(op: str) -> Callable:
    return getattr(importlib.import_module("specdec_kernels"), op)


class _Refuser(TorchDispatchMode):
    """Dispatch mode that raises if the device's backend does not support a call of the op with valid arguments."""

    def __init__(self, op: str, device: torch.device):
        super().__init__()
        self.op, self.name = op, backends.chosen()
        on_device = device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
        self.is_triton = self.name == "triton" and on_device

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if self.is_triton and function.namespace == "specdec" and function._opname == self.op:
            from specdec_kernels import triton

            triton.refuser(self.op)(args)
        return function(*args, **(kwargs or {}))


class _Side(NamedTuple):
    """The description of one side's rows, for one request with one draft."""

    dtype: torch.dtype
    step: int  # stride of the last dimension
    kind: str
    fields: tuple[str, ...]

    def rows(self, *shape: int) -> Rows:
        """Return rows [*shape, V]; if they have an index, a store of rows in their place."""
        stored = (*shape[:-1], 2) if "row" in self.fields else shape
        strides = _empty(*stored, _V * self.step).stride()
        logits = torch.empty_strided((*stored, _V), (*strides[:-1], self.step), dtype=self.dtype, device="meta")
        return Rows(logits, kind=self.kind, **{name: _FIELDS[name](stored, shape) for name in self.fields})


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


_int32, _int64 = (partial(_empty, dtype=dtype) for dtype in (torch.int32, torch.int64))

# Functions that make a field of Rows. stored: the rows' shape in memory, shape: that in the call; both without V.
_FIELDS: dict[str, Callable] = {
    **dict.fromkeys(("temperature", "top_p", "min_p", "top_n_sigma"), lambda stored, shape: _empty(1)),
    "top_k": lambda stored, shape: _int32(1),
    "stats": lambda stored, shape: _empty(*stored, 4),
    "row": lambda stored, shape: _int32(*shape),
    "penalties": lambda stored, shape: Penalties(1.1, 0.1, 0.1, _int32(1, 1), _int32(1, 1)),
    "bias": lambda stored, shape: Bias(_int32(1, 1), _empty(1, 1), _int32(1)),
    "allowed": lambda stored, shape: Allowed(_int32(1, _V // 32), _int32(1)),
    "ids": lambda stored, shape: _int32(*stored, _V),
    "vocab_map": lambda stored, shape: VocabMap(_int32(4 * _V + 1), _V),
}


def _flat(**more: Any) -> Callable:
    return lambda side, draft: {"rows": side.rows(1)} | more


def _pair(**more: Any) -> Callable:
    return lambda side, draft: {"p": side.rows(1), "q": (draft or side).rows(1)} | more


def _probs(side: _Side, draft: _Side | None, *ids: int, **more: Any) -> dict:
    """Return p and q. ids: the shape of q if drafts are one-hot."""
    return {"p": side.rows(1).logits, "q": draft.rows(1).logits if draft else _int64(*ids)} | more


def _seeds() -> dict[str, torch.Tensor]:
    return {"seed": _int64(1), "offset": _int64(1)}


def _chain(side: _Side, draft: _Side | None) -> dict:
    step = {"target": side.rows(1, 2), "draft_tokens": _int64(1, 1)} | _seeds()
    return step if draft is None else step | {"draft": draft.rows(1, 1)}


def _tree(side: _Side, draft: _Side | None) -> dict:
    step = {"tree": (_int32(1, 2), _int64(1, 2)), "target": side.rows(1, 2), "max_depth": 1} | _seeds()
    return step if draft is None else step | {"draft": draft.rows(1, 2)}


# Functions that make the arguments of a call from the target's side and the draft's. draft None: one-hot drafts.
_CALLS: dict[str, Callable] = {
    "row_stats": _flat(),
    "sample": lambda side, draft: {"rows": side.rows(1)} | _seeds(),
    "top_logprobs": _flat(k=1),
    "support": _flat(max_kept=1),
    "row_topw": lambda side, draft: {"rows": side.rows(1), "score": _empty(1), "w": 1},
    "row_gap": _pair(),
    "kseq_rho": _pair(k=1),
    "accept": lambda side, draft: _probs(side, draft, 1, _V, u=_empty(1, _V, dtype=torch.float64)),
    "residual": lambda side, draft: _probs(side, draft, 1),
    "verify_chain": _chain,
    "verify_tree": lambda side, draft: _tree(side, draft) | {"method": "recursive" if draft else "target_only"},
}
