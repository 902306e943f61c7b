# SPDX-License-Identifier: Apache-2.0
"""What passes between the host and the device of the models, so that a step of the loop waits for the device once.

To the device goes everything without waiting (upload). From it comes what was asked for during a step, in one copy
(Readback). Where reading is free, on the CPU, shapes may follow the data; elsewhere they are the largest there can be
(is_free, at_most).
"""

from collections.abc import Sequence
from itertools import accumulate

import torch

__all__ = ["CPU", "Readback", "Reading", "at_most", "is_free", "upload", "upload_rows"]

CPU = torch.device("cpu")


def is_free(x: torch.Tensor) -> bool:
    """Whether the host reads values of x without waiting for anything."""
    return x.device.type == "cpu"


def at_most(counts: torch.Tensor, bound: int) -> int:
    """The largest of `counts` where that is free to know, else `bound`, which none exceeds."""
    return int(counts.max()) if is_free(counts) else bound


def upload(values: torch.Tensor | Sequence, device: torch.device, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Numbers of the host as a tensor on the device, without waiting for what runs there; a tensor of the device is
    taken as it is."""
    if isinstance(values, torch.Tensor):
        return values
    pinned = device.type == "cuda"
    return torch.tensor(values, dtype=dtype, device=CPU, pin_memory=pinned).to(device, non_blocking=True)


def upload_rows(rows: list[list[int]], device: torch.device, padding: int = -1) -> torch.Tensor:
    """Rows of different length as one tensor [n, width], padded at their ends."""
    width = max(map(len, rows))
    return upload([row + [padding] * (width - len(row)) for row in rows], device)


class Reading:
    """The values of an integer tensor [n] or [n, k], once they are on the host."""

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
    """What the host asks to know; all that has been asked for is copied when the first of it is needed."""

    def __init__(self) -> None:
        self._asked: list[tuple[Reading, torch.Tensor]] = []

    def ask(self, tensor: torch.Tensor) -> Reading:
        """tensor [n] or [n, k], of integers or bool."""
        self._asked.append((Reading(self), tensor))
        return self._asked[-1][0]

    def forget(self) -> None:
        """Nobody wants to know any more."""
        self._asked = []

    def read(self) -> None:
        asked, self._asked = self._asked, []
        values = torch.cat([tensor.flatten().long() for _, tensor in asked]).tolist()
        ends = list(accumulate(tensor.numel() for _, tensor in asked))
        for (reading, tensor), end in zip(asked, ends):
            own = values[end - tensor.numel() : end]
            k = tensor.shape[1] if tensor.dim() == 2 else 0
            reading.fill(own if tensor.dim() == 1 else [own[i * k : (i + 1) * k] for i in range(len(tensor))])
