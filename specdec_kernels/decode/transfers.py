# SPDX-License-Identifier: Apache-2.0
"""Transfers between the host and the models' device, arranged so that most steps of the loop wait for the device once.

Uploads never wait (upload). Values requested during a step are read back together (Readback). On the CPU, where
reading is free, shapes may depend on the data; on other devices they have their largest possible size (is_free,
at_most).
"""

from collections.abc import Sequence
from itertools import accumulate

import torch

__all__ = ["CPU", "Readback", "Reading", "at_most", "is_free", "row_of_each", "send", "upload", "upload_rows"]

CPU = torch.device("cpu")


def is_free(x: torch.Tensor) -> bool:
    """Return whether the host can read x without waiting for a device."""
    return x.device.type == "cpu"


def at_most(counts: torch.Tensor, bound: int) -> int:
    """Return the largest of `counts` if reading them is free, else `bound`, which none exceeds."""
    return int(counts.max()) if is_free(counts) else bound


def upload(values: torch.Tensor | Sequence, device: torch.device, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Copy numbers to a tensor on the device, without waiting for its running work. A tensor is returned as it is."""
    if isinstance(values, torch.Tensor):
        return values
    pinned = device.type == "cuda"
    return torch.tensor(values, dtype=dtype, device=CPU, pin_memory=pinned).to(device, non_blocking=True)


def send(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a tensor on the host to the device, without waiting for its running work."""
    return (x.pin_memory() if device.type == "cuda" else x).to(device, non_blocking=True)


def upload_rows(rows: list[list[int]], device: torch.device, padding: int = -1) -> torch.Tensor:
    """Upload rows of different lengths as one tensor [n, width], padded at their ends."""
    width = max(map(len, rows))
    return upload([row + [padding] * (width - len(row)) for row in rows], device)


class Reading:
    """The values of an integer tensor [n] or [n, k], read to the host when first used."""

    def __init__(self, readback: "Readback"):
        self._readback = readback
        self._rows: list | None = None

    @property
    def rows(self) -> list:
        if self._rows is None:
            self._readback.read()
        assert self._rows is not None
        return self._rows

    def fill(self, rows: list) -> None:
        self._rows = rows


class Readback:
    """Pending reads of device tensors. The first use of any value copies all pending tensors at once."""

    def __init__(self) -> None:
        self._asked: list[tuple[Reading, torch.Tensor]] = []

    def ask(self, tensor: torch.Tensor) -> Reading:
        """Request the values of a tensor [n] or [n, k] of integers or bool."""
        self._asked.append((Reading(self), tensor))
        return self._asked[-1][0]

    def forget(self) -> None:
        """Drop all pending requests."""
        self._asked = []

    def read(self) -> None:
        asked, self._asked = self._asked, []
        values = torch.cat([tensor.flatten().long() for _, tensor in asked]).tolist()
        ends = list(accumulate(tensor.numel() for _, tensor in asked))
        for (reading, tensor), end in zip(asked, ends):
            own = values[end - tensor.numel() : end]
            k = tensor.shape[1] if tensor.dim() == 2 else 0
            reading.fill(own if tensor.dim() == 1 else [own[i * k : (i + 1) * k] for i in range(len(tensor))])


def row_of_each(ids: torch.Tensor) -> torch.Tensor | None:
    """Return each token's index [n, T] among those that are not padding; at padding, that of the token before.

    None if there is no padding, or if reading ids would wait for a device.
    """
    there = ids >= 0
    return (there.flatten().cumsum(0) - 1).view_as(ids) if is_free(ids) and not there.all() else None
