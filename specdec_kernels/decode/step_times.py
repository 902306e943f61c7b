# SPDX-License-Identifier: Apache-2.0
"""Timing of the parts of a step, by the clock of the device they run on."""

from time import perf_counter
from typing import Any

import torch

__all__ = ["StepTimes"]


class StepTimes:
    """Time marks between the parts of a step.

    On a GPU a part ends later than its launch, so marks are CUDA events there. Read them after a synchronisation.
    """

    def __init__(self, device: torch.device):
        self.device, self.began = device, perf_counter()
        self.marks: list[Any] = []
        self.mark()

    def mark(self) -> None:
        """End the current part and begin the next."""
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self.device))
            self.marks.append(event)
        else:
            self.marks.append(perf_counter())

    def seconds(self) -> list[float]:
        """Return the seconds between consecutive marks."""
        pairs = zip(self.marks, self.marks[1:])
        if self.device.type == "cuda":
            return [a.elapsed_time(b) / 1e3 for a, b in pairs]
        return [b - a for a, b in pairs]
