# SPDX-License-Identifier: Apache-2.0
"""A view of rows that negates the logits of odd ids: rows with the view applied, and the ops' results for them."""

import torch
from support import backends

import specdec_kernels as sk
from specdec_kernels.arguments import TABLE, sides
from specdec_kernels.rows import Rows
from tools.record import digest

AT_ONCE = 20  # calls in one request to a worker, whose time is limited: support/worker.py


def negated(x):
    """Return x [..., V] with the view applied, in the same layout and its own memory."""
    y = x.new_empty(0).set_(x.untyped_storage().clone(), x.storage_offset(), x.size(), x.stride())
    once = y[tuple(slice(0, 1) if step == 0 else slice(None) for step in y.stride())]
    once[..., 1::2].neg_()
    return y


def written_out(op, arguments):
    """Return the arguments of a public function, with the view applied to its rows."""
    rows = {*sides(op), *(x.public for x in TABLE[op] if x.type.startswith("rows"))}

    def seen(x):
        if isinstance(x, Rows):
            return x._replace(logits=negated(x.logits))
        return negated(x) if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    return {name: seen(x) if name in rows else x for name, x in arguments.items()}


def answers(backend, calls, view):
    """Return a digest of the results of each (op, arguments). view: whether to apply the view to rows first."""
    found = []
    for i in range(0, len(calls), AT_ONCE):
        found += backends.there(backend, answers_here, backend, calls[i : i + AT_ONCE], view)
    return found


def ops_that_change(backend, calls, wanted):
    """Return the ops with a call whose results on unchanged rows are not those in `wanted`."""
    changed = set()
    for call, want in zip(calls, wanted, strict=True):
        if call[0] not in changed and answers(backend, [call], False) != [want]:
            changed.add(call[0])
    return changed


def answers_here(backend, calls, view):
    ops, found = sk.reference if backend == "reference" else sk, []
    for op, arguments in calls:
        try:
            found.append(digest(getattr(ops, op)(**(written_out(op, arguments) if view else arguments))))
        except Exception as error:
            found.append(str(error))
    return found
