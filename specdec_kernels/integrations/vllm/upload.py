# SPDX-License-Identifier: Apache-2.0
"""Copies of small arrays from the host to the device."""

from __future__ import annotations

import numpy as np
import torch


def on(x: np.ndarray | list[int], device: torch.device) -> torch.Tensor:
    """Return x on the device, without waiting for it; a list becomes int64.

    It is copied to a GPU from pinned memory. A copy from other memory would wait, even with non_blocking.
    """
    made = torch.tensor(x, dtype=torch.int64, device="cpu") if isinstance(x, list) else torch.from_numpy(x)
    return (made.pin_memory() if device.type == "cuda" else made).to(device, non_blocking=True)
