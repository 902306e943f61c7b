# SPDX-License-Identifier: Apache-2.0
"""The collectives of ``torch.distributed`` that the ops use. All ranks know the shapes beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
import torch.distributed as dist

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the name before torch 2.13


def gather(op: str, shards, mine: torch.Tensor) -> torch.Tensor:
    """Gather the tensors [*shape] of all ranks as [ranks, *shape]."""
    everyone = mine.new_empty(shards.ranks, *mine.shape)
    try:
        _all_gather(everyone.flatten(), mine.flatten(), group=shards.group)
    except RuntimeError as error:
        raise lost(op, error) from error
    shards.traffic.rounds += 1
    shards.traffic.gathered += everyone.numel() * everyone.element_size()
    return everyone


def all_to_all(
    op: str, shards, pieces: Sequence[torch.Tensor], shapes: Sequence[tuple[int, ...]]
) -> list[torch.Tensor]:
    """Send pieces[r] to rank r. Return the piece that each rank r sent to this one, which has shape shapes[r]."""
    x = pieces[0]
    sent = [piece.numel() for piece in pieces]
    received = [prod(shape) for shape in shapes]
    came = x.new_empty(sum(received) * x.element_size(), dtype=torch.uint8)
    gone = torch.cat([piece.flatten() for piece in pieces]).view(torch.uint8)
    into, out_of = ([n * x.element_size() for n in counts] for counts in (received, sent))
    try:
        dist.all_to_all_single(came, gone, into, out_of, group=shards.group)
    except RuntimeError as error:
        raise lost(op, error) from error
    shards.traffic.rounds += 1
    return [part.view(shape) for part, shape in zip(came.view(x.dtype).split(received), shapes)]


def lost(op: str, error: Exception) -> RuntimeError:
    first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return RuntimeError(
        f"{op}: all ranks must answer within the process group's timeout, got none from one of them: {first_line}"
    )
