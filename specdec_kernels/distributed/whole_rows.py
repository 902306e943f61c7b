# SPDX-License-Identifier: Apache-2.0
"""The exchange of whole rows: each rank verifies a share of the requests.

An all-to-all sends each rank the whole rows of its share. The rank calls the op on them, and a gather sends its results
to all ranks. So a call needs a round for each side whose rows are split, and one for the results. Their shapes follow
from the arguments.

If requests cannot be separated on the host (ragged batches, rows by index), or are fewer than the ranks, every rank
gets all rows and makes the whole call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from specdec_kernels.allowed import Allowed
from specdec_kernels.arguments import places
from specdec_kernels.bias import Bias
from specdec_kernels.distributed.agreement import agree
from specdec_kernels.distributed.collectives import all_to_all, gather
from specdec_kernels.penalties import Penalties
from specdec_kernels.rows import Rows

Share = tuple[int, int]  # requests [begin, end)


def logits_of(side: Any) -> Any:
    """Return the logits of Rows; a plain tensor is its own logits."""
    return side.logits if isinstance(side, Rows) else side


def with_logits(side: Any, logits: torch.Tensor) -> Any:
    return side._replace(logits=logits) if isinstance(side, Rows) else logits


def call_on_whole_rows(op: str, function: Callable, arguments: Mapping[str, Any], sides: Mapping[str, Any], shards):
    """Call the function on whole rows. sides: the Shards of each side's rows, or None if they are whole already."""
    n = len(logits_of(arguments[next(iter(sides))]))
    shares = _shares(op, arguments, n, shards.ranks)
    if shares is None:
        split = {name: (arguments[name], of) for name, of in sides.items() if of is not None}
        rows = {name: with_logits(x, gathered(op, of, logits_of(x))) for name, (x, of) in split.items()}
        return function(**{**arguments, **rows})
    if shards.checked:
        check(function, arguments, sides)
    begin, end = shares[shards.rank]
    mine = share_of(op, arguments, n, begin, end)
    for name, of in sides.items():
        if of is not None:
            mine[name] = with_logits(mine[name], dealt(op, of, logits_of(arguments[name]), shares))
    found: Any = None
    problem: Exception | None = None
    try:
        found = function(**mine)
    except Exception as error:  # such as an invalid value on the CPU in this share alone
        problem = error
    if shards.checked:
        agree(op, shards, {}, problem)
    elif problem is not None:
        raise problem
    return _everyones(op, found, shares, shards)


def _shares(op: str, arguments: Mapping[str, Any], n: int, ranks: int) -> list[Share] | None:
    """Return each rank's share of the n requests; None if each rank makes the whole call."""
    anywhere = any(x.per == "whole" and _given(arguments, place) is not None for place, x in places(op).items())
    return None if anywhere or not 1 < ranks <= n else list(pairwise(n * r // ranks for r in range(ranks + 1)))


def _given(arguments: Mapping[str, Any], place: str) -> Any:
    """Return an argument, or a field of Rows (None if the argument is a plain tensor)."""
    name, _, field = place.partition(".")
    x = arguments[name]
    return x if not field else getattr(x, field) if isinstance(x, Rows) else None


def share_of(op: str, arguments: Mapping[str, Any], n: int, begin: int, end: int) -> dict[str, Any]:
    """Return the arguments of the requests (or rows) [begin, end) of n. places() shows which arguments are cut."""
    table = places(op)

    def share(place, x):
        if isinstance(x, (Penalties, Bias, Allowed)) and x.row is None:
            x = _numbered(x, n)
        if isinstance(x, (tuple, list)):
            names = x._fields if isinstance(x, (Rows, Penalties, Bias, Allowed)) else range(len(x))
            return _like(x, [share(f"{place}.{name}", part) for name, part in zip(names, x)])
        known = table.get(place) or table.get(f"{place}.logits")  # a plain tensor in the place of Rows
        if known is None or not isinstance(x, torch.Tensor):
            return x
        if known.per == "count":
            return x.clamp(begin, end) - begin  # clamped first: the difference alone could overflow int32
        return x[begin:end] if known.is_cut(x.dim()) and len(x) == n else x

    return {name: share(name, x) for name, x in arguments.items()}


def _numbered(view: Penalties | Bias | Allowed, n: int) -> Penalties | Bias | Allowed:
    """Return a view that gives its lists by index, in `row`. The lists are in the order of the n requests or of their
    positions."""
    lists = view.counts if isinstance(view, Penalties) else view.ids if isinstance(view, Bias) else view.bits
    if not isinstance(lists, torch.Tensor):
        return view
    count = prod(lists.shape[:-1])
    numbers = torch.arange(count, device=lists.device)
    flat = {name: x.flatten(0, 1) for name, x in view._asdict().items() if isinstance(x, torch.Tensor) and x.dim() == 3}
    return view._replace(row=numbers if count == n or count % n else numbers.view(n, -1), **flat)


def _like(x: Any, parts: list) -> Any:
    """Return a tuple, named tuple or list of x's type, with other parts."""
    return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)


def dealt(op: str, of, rows: torch.Tensor, shares: Sequence[Share]) -> torch.Tensor:
    """Return the whole rows of this rank's share, [end - begin, ..., vocab_size]. rows: this rank's slice of all rows,
    [n, ..., size]."""
    begin, end = shares[of.rank]
    widths = [b - a for a, b in pairwise(of.bounds)]
    shapes = [(end - begin, *rows.shape[1:-1], width) for width in widths]
    parts = all_to_all(op, of, [rows[a:b].detach() for a, b in shares], shapes)
    each = prod(rows.shape[1:-1]) * rows.element_size()  # bytes of the entries of one id in all rows of a request
    stay = sum((b - a) * width for (a, b), width in zip(shares, widths))
    of.traffic.moved += (len(rows) * of.vocab_size - stay) * each
    return _side_by_side(parts, of.vocab_size)


def gathered(op: str, of, rows: torch.Tensor) -> torch.Tensor:
    """Gather all rows as [..., vocab_size]. rows: this rank's slice [..., size]."""
    widths = [b - a for a, b in pairwise(of.bounds)]
    mine = rows.new_empty(*rows.shape[:-1], max(widths))  # a gather needs equal shapes
    mine[..., : of.size] = rows.detach()
    return _side_by_side([x[..., :width] for x, width in zip(gather(op, of, mine), widths)], of.vocab_size)


def _side_by_side(parts: Sequence[torch.Tensor], V: int) -> torch.Tensor:
    """Concatenate slices of rows. Every row begins at a multiple of 16 bytes, for the kernels' widest loads."""
    x = parts[0]
    unit = 16 // x.element_size()
    out = x.new_empty(*x.shape[:-1], -(-V // unit) * unit)[..., :V]
    for part, place in zip(parts, out.split([part.shape[-1] for part in parts], -1)):
        place.copy_(part)
    return out


class _Checks(TorchDispatchMode):
    """A mode in which ops check their arguments and do not run."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "specdec":
            function = getattr(getattr(torch.ops.specdec_check, function._opname), function._overloadname)
        return function(*args, **(kwargs or {}))


def check(function: Callable, arguments: Mapping[str, Any], sides: Mapping[str, Any]) -> None:
    """Raise the op's errors for the whole batch on every rank, since a rank's share alone might pass.

    The check passes the slices in place of whole rows; an empty slice is replaced by one entry per row.
    """
    rows = {name: logits_of(arguments[name]) for name in sides}
    some = {name: x if x.size(-1) else x.new_empty((*x.shape[:-1], 1)) for name, x in rows.items()}
    with _Checks():
        function(**{**arguments, **{name: with_logits(arguments[name], x) for name, x in some.items()}})


def _everyones(op: str, found: Any, shares: Sequence[Share], shards) -> Any:
    """Gather the results [end - begin, ...] of all ranks in one round, and return them concatenated."""
    results = [found] if isinstance(found, torch.Tensor) else list(found)
    parts: list[Any] = [x.stats if isinstance(x, Rows) else x for x in results]
    most = max(end - begin for begin, end in shares)
    padded = [torch.cat([x, x.new_zeros(most - len(x), *x.shape[1:])]) for x in parts]
    mine = torch.cat([x.flatten().view(torch.uint8) for x in padded])
    everyone = gather(op, shards, mine)
    whole: list[Any] = []
    at = 0
    for x in padded:
        size = x.numel() * x.element_size()
        of_ranks = everyone[:, at : at + size].contiguous().view(x.dtype).view(shards.ranks, *x.shape)
        whole.append(torch.cat([own[: end - begin] for own, (begin, end) in zip(of_ranks, shares)]))
        at += size
    whole = [x._replace(stats=of_all) if isinstance(x, Rows) else of_all for x, of_all in zip(results, whole)]
    return whole[0] if isinstance(found, torch.Tensor) else type(found)(*whole)
