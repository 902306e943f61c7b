# SPDX-License-Identifier: Apache-2.0
"""Where a verification writes: tensors of its own, or the caller's (csrc/binding/verification.h)."""

from __future__ import annotations

import torch

from . import check

WIDE = {  # of each result in order: its dtypes, the first of which a new one has, and whether it is [B, width] or [B]
    "tokens": ((torch.int64, torch.int32), True),
    "num_accepted": ((torch.int32,), False),
    "logprobs": ((torch.float32,), True),
    "status": ((torch.int32,), False),
    "path": ((torch.int32,), True),
}


def make_room(op: str, B: int, width: int, like: torch.Tensor, given: dict | None, path: bool = False) -> tuple:
    """tokens, num_accepted, logprobs, status, and a tree's path."""
    results = []
    for name, (dtypes, wide) in WIDE.items():
        if name == "path" and not path:
            break
        shape = (B, width) if wide else (B,)
        if given is None:
            results.append(torch.empty(shape, dtype=dtypes[0], device=like.device))
            continue
        t, name = given[name], f"out.{name}"
        check.device(op, name, t, like)
        if t.dtype not in dtypes:
            check.dtype(op, name, t, dtypes[0])
        check.shape(op, name, t, *shape)
        check.contiguous(op, name, t)
        results.append(t)
    return tuple(results)
