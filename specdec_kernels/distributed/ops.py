# SPDX-License-Identifier: Apache-2.0
"""The ops on rows that are split over ranks, under the names of the ops on whole rows."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

import torch

import specdec_kernels as whole
from specdec_kernels.arguments import sides as rows_of
from specdec_kernels.distributed.agreement import agree
from specdec_kernels.distributed.collectives import gather
from specdec_kernels.distributed.shards import Shards, slices
from specdec_kernels.distributed.whole_rows import call_on_whole_rows, check, logits_of, with_logits
from specdec_kernels.ops import _rows as _of_rows
from specdec_kernels.registry import CHUNK, MAX_VOCABULARY
from specdec_kernels.rows import Rows

_DOC = """``specdec_kernels.{op}`` on rows that are split over the ranks of a process group. This is a collective.

    Every rank gives its own slice [..., shards.size] of the logits of {rows}. Other arguments, except ``out``, must be
    equal on all ranks. Every rank gets the same results: bit for bit those of ``specdec_kernels.{op}`` on whole rows.
    With ``exchange="chunks"`` no rank ever holds a whole row that is split. With ``exchange="rows"`` each rank receives
    the whole rows of its share of the requests, or of all requests if they cannot be shared out.

    Args:
        shards: how the vocabulary{of_target} is split, a ``Shards``.{draft_shards}
        Everything else: as for ``specdec_kernels.{op}``.

    Raises:
        The errors of ``specdec_kernels.{op}``, on every rank. ValueError: rows with ``ids`` or ``vocab_map``
        that are split over the ranks. A draft that every rank has whole may have them.
        RuntimeError: on every rank, if one of them gives a different argument (which is named), cannot make the call,
        or is gone (then within the process group's timeout).
        NotImplementedError: if ``exchange`` is "chunks" and the rows are not on the CPU.

    Example:
        >>> out = distributed.{op}({example}, shards=shards)
    """
_OF_DRAFT = """
        draft_shards: how the draft's vocabulary is split; None: every rank has {draft} whole. With
            ``exchange="chunks"``, if the draft is split at other ids than the target, entries move between ranks before
            the call."""


def _over_ranks(function: Callable, target: str, draft: str | None, example: str) -> Callable:
    op, signature = function.__name__, inspect.signature(function)

    @functools.wraps(function)
    def call(*args, shards: Shards, draft_shards: Shards | None = None, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        sides: dict[str, Shards | None] = {target: shards}
        if draft and arguments[draft] is not None:
            sides[draft] = draft_shards
        mine = logits_of(arguments[target])
        shards.traffic.calls += 1
        exchange = _exchange(shards, mine)
        problem = _problem(function, arguments, sides, exchange)
        out = arguments.pop("out", None)  # filled at the end; ranks need not agree on it
        if shards.checked:
            _agree(op, arguments, sides, shards, exchange, problem)
        elif problem is not None:
            raise problem
        if exchange == "rows":
            found = call_on_whole_rows(op, function, arguments, sides, shards)
        else:
            first = shards.chunk_owners()
            split = {name: of for name, of in sides.items() if not _has_ids(arguments[name])}
            kept = {name: _rows(op, logits_of(arguments[name]), of, shards, first) for name, of in split.items()}
            arguments.update({name: with_logits(arguments[name], rows) for name, (_, rows) in kept.items()})
            found = _rounds(op, shards, first, lambda: function(*bound.args, **bound.kwargs))
        if isinstance(found, whole.SampleOutput):
            return found._replace(rows=_of_rows.of_stats(arguments[target], mine, found.rows.stats))
        return found if out is None else type(found)(*map(torch.Tensor.copy_, out, found))

    rows = target if draft is None else f"{target} (and {draft}, where draft_shards are given)"
    call.__doc__ = _DOC.format(
        op=op,
        rows=rows,
        example=example,
        of_target=" of " + target if draft else "",
        draft_shards=_OF_DRAFT.format(draft=draft) if draft else "",
    )
    call.__annotations__ = function.__annotations__ | {"shards": Shards}
    return call


def _has_ids(rows) -> bool:
    """Return whether rows have ``ids`` or a ``vocab_map``. Such rows are never split."""
    return isinstance(rows, Rows) and (rows.ids is not None or rows.vocab_map is not None)


def _exchange(shards: Shards, rows) -> str:
    on_cpu = not isinstance(rows, torch.Tensor) or rows.device.type == "cpu"
    return shards.exchange or ("chunks" if on_cpu else "rows")


def _problem(function, arguments, sides, exchange) -> Exception | None:
    """Return the error in this rank's own arguments, its slice of the rows and `out`; None if there is none."""
    op = function.__name__
    for name, of in sides.items():
        rows = logits_of(arguments[name])
        if not isinstance(rows, torch.Tensor):
            where, kinds = (f"{name}.logits", "") if isinstance(arguments[name], Rows) else (name, " or Rows")
            return TypeError(f"{op}: {where} must be a torch.Tensor{kinds}, got {type(rows).__name__}")
        if of is not None and isinstance(arguments[name], Rows):
            try:
                _of_rows.refuse(op, name, arguments[name], *_of_rows.IDS)
            except ValueError as error:
                return error
        name = f"{name}.logits"
        if exchange == "chunks" and rows.device.type != "cpu":
            return NotImplementedError(f"{op}: {name} must be on the CPU where exchange is 'chunks', got {rows.device}")
        if of is not None and (rows.dim() < 1 or rows.size(-1) != of.size):
            wanted = f"{name} must have this rank's {of.size} entries of each row"
            return ValueError(f"{op}: {wanted}, got {list(rows.shape)}")
    if arguments.get("out") is None:
        return None
    try:
        check(function, arguments, sides)
    except Exception as error:
        return error
    return None


def _agree(op, arguments, sides, shards, exchange, problem):
    """Check that all ranks have the same arguments. The entries of rows that are split may differ."""
    split = (shards.vocab_size, shards.bounds, exchange)
    same: dict[str, object] = {"shards": split, "instructions": (whole.backends.cpu_isa(), whole.backends.chosen())}
    known = rows_of(op)
    for name, x in arguments.items():
        rows = x if isinstance(x, Rows) else Rows(x)  # a tensor here must equal Rows of it on another rank
        same |= {f"{name}.{field}": y for field, y in rows._asdict().items()} if name in known else {name: x}
    for name, of in sides.items():
        rows = logits_of(arguments[name])
        if of is not None and isinstance(rows, torch.Tensor):
            same[f"{name}.logits"] = tuple(rows.shape[:-1]), rows.dtype, of.vocab_size, of.bounds
    agree(op, shards, same, problem)


def _rows(op, rows, of, shards, first):
    """Return this rank's chunks of the rows, and a view of them in the shape of whole rows to pass to the op."""
    rows = rows.detach()
    V = of.vocab_size if of else rows.size(-1)
    to = slices(V, first)
    begin, end = to[shards.rank], to[shards.rank + 1]
    mine = of.rearranged(op, rows, to) if of else rows[..., begin:end]
    if begin == end:  # no entry is read, but each row needs an address of its own
        mine = rows.new_empty((*rows.shape[:-1], 1))
    return mine, mine[..., :1].expand(*mine.shape[:-1], V)  # last stride 0: the op's reader adds the offset


def _rounds(op, shards, first, call):
    """Repeat the call, each time with more results from other ranks, until it needs no more of them."""
    ops = torch.ops.specdec_shards
    handle = ops.open([*first[:-1], MAX_VOCABULARY // CHUNK], shards.rank)  # the draft's vocabulary may be larger
    try:
        while True:
            ops.enter(handle)
            try:
                found = call()
            finally:
                mine = ops.leave(handle)
            if mine.numel() == 0:
                return found
            ops.answer(handle, gather(op, shards, mine))
    finally:
        ops.close(handle)


verify_chain = _over_ranks(whole.verify_chain, "target", "draft", "target, draft_tokens, draft, seed=s, offset=o")
verify_tree = _over_ranks(whole.verify_tree, "target", "draft", 'tree, target, method="target_only", seed=s, offset=o')
row_stats = _over_ranks(whole.row_stats, "rows", None, "Rows(logits, temperature=0.7)")
sample = _over_ranks(whole.sample, "rows", None, "logits, seed=s, offset=o")
row_gap = _over_ranks(whole.row_gap, "p", "q", "p, q")
kseq_rho = _over_ranks(whole.kseq_rho, "p", "q", "p, q, 4")
