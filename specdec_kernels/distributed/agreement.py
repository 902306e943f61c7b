# SPDX-License-Identifier: Apache-2.0
"""A round in which ranks check that all of them make the same call and that none has an error.

The size of its messages is fixed, so it cannot hang when arguments differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
import torch.distributed as dist

from specdec_kernels.distributed.collectives import gather
from specdec_kernels.distributed.fingerprint import fingerprint

OPS = ("verify_chain", "verify_tree", "row_stats", "sample", "row_gap", "kseq_rho")
SLOTS = 64  # int64 values that a rank sends: the op, whether it has an error, then a digest of each argument


SMALL = 1 << 16  # bytes; a larger tensor is hashed by its fingerprint instead of its contents


def digest(*parts) -> int:
    """Hash tensors by their contents (large ones by their fingerprint, without a copy), tuples and lists by their
    entries, and anything else by its repr."""
    found = hashlib.blake2b(digest_size=8)
    for part in parts:
        if isinstance(part, torch.Tensor):
            found.update(repr((part.dtype, tuple(part.shape))).encode())
            found.update(_bytes_of(part))
        elif isinstance(part, (tuple, list)):
            found.update(digest(*part).to_bytes(8, "little", signed=True))
        else:
            found.update(repr(part).encode())
    return int.from_bytes(found.digest(), "little", signed=True)


def _bytes_of(x: torch.Tensor) -> bytes:
    """Return the bytes of x, or of its fingerprint if x is large."""
    if x.nbytes > SMALL:
        return int(fingerprint(x)).to_bytes(8, "little", signed=True)
    # A clone, since reshape() may keep a stride other than 1 for a single entry, which view() then refuses.
    own = x.detach().clone(memory_format=torch.contiguous_format)
    return own.view(-1).view(torch.uint8).cpu().numpy().tobytes()


def agree(op: str, shards, arguments: Mapping[str, object], problem: Exception | None) -> None:
    """Raise on every rank if the ranks' calls differ, or if some rank has an error of its own (`problem`)."""
    mine = torch.zeros(SLOTS, dtype=torch.int64, device="cpu")
    mine[0], mine[1] = OPS.index(op), problem is not None
    for i, value in enumerate(arguments.values()):
        mine[2 + i] = digest(value)
    device = "cuda" if "nccl" in dist.get_backend(shards.group) else "cpu"
    everyone = gather(op, shards, mine.to(device)).tolist()
    if problem is not None:
        raise problem
    for rank, theirs in enumerate(everyone):
        if theirs[1]:
            raise RuntimeError(f"{op}: all ranks must be able to make the call, got an error on rank {rank}")
        if theirs[0] != mine[0]:
            raise RuntimeError(f"{op}: all ranks must call the same op, got {OPS[theirs[0]]} on rank {rank}")
    for i, name in enumerate(arguments):
        values = [theirs[2 + i] for theirs in everyone]
        if len(set(values)) > 1:
            other = next(r for r, x in enumerate(values) if x != values[0])
            raise RuntimeError(f"{op}: {name} must be the same on all ranks, got another one on rank {other} than on 0")
