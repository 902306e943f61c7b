# SPDX-License-Identifier: Apache-2.0
import torch

from specdec_kernels.penalties import history


def lists(x, S, size):
    """Return ids and counts of S lists of random prompts and outputs, with room for `size` distinct tokens."""
    prompts, outputs = x.integers(0, 40, 2, S, 5).cpu().tolist() if x.device.type != "meta" else [[[0] * 5] * S] * 2
    return tuple(x.on_device(part) for part in history(prompts, outputs, size))


def calls(x):
    yield "each its own list", dict(zip(("ids", "counts"), lists(x, 3, 20))) | {"tokens": x.integers(0, 40, 3, 6)}
    ids, counts = lists(x, 5, 12)
    step = {"tokens": x.integers(0, 40, 3, 6).to(torch.int32), "num_tokens": x.integers(0, 7, 3)}
    yield "by slot", {"ids": ids, "counts": counts, **step, "row": x.tensor(4, -1, 2)}
