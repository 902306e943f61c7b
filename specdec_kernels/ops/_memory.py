# SPDX-License-Identifier: Apache-2.0
"""What results that the caller gives must not share: the bytes of an argument, or of another result
(csrc/binding/verification.h)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch


def check_own(op: str, arguments: Iterable[object], out: Mapping[str, torch.Tensor]) -> None:
    taken = [extent(x) for x in arguments if isinstance(x, torch.Tensor)]
    for name, x in out.items():
        begin, end = extent(x)
        if any(begin < last and first < end for first, last in taken):
            raise RuntimeError(f"{op}: out.{name} must have memory of its own, got some of another argument's")
        taken.append((begin, end))


def extent(x: torch.Tensor) -> tuple[int, int]:
    """The bytes that a tensor's entries lie between."""
    if not x.numel():
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride()))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()
