# SPDX-License-Identifier: Apache-2.0
"""Choice of the number of threads that torch uses for decoding on a CPU."""

from statistics import median
from time import perf_counter

import torch

__all__ = ["pick_threads"]


def pick_threads(target, counts: tuple[int, ...], seconds: float = 4.0, passes: int = 10) -> tuple[int, float]:
    """Return the number of threads, out of `counts`, that is fastest for passes of one token, and a pass's seconds.

    If another program uses a core, threads that wait for each other are slow, and a single one is faster. The numbers
    of threads are timed in turn, so that a change of the machine's speed affects all of them. After the first two
    turns, none begins later than `seconds`.
    """
    before = torch.get_num_threads()
    cache, token = target.new_cache(1, 2), torch.tensor([[0]], dtype=torch.int64, device="cpu")
    target.forward(token, [0], cache, keep=None)
    times: dict[int, list[float]] = {threads: [] for threads in counts}
    began = perf_counter()
    try:
        for turn in range(1 + passes):
            for threads, found in times.items():
                torch.set_num_threads(threads)
                start = perf_counter()
                target.forward(token, [1], cache)
                found.append(perf_counter() - start)
            if turn and perf_counter() - began > seconds:
                break
    finally:
        torch.set_num_threads(before)
    medians = {threads: median(found[1:]) for threads, found in times.items()}  # the first turn is the warm-up
    return min(medians.items(), key=lambda of: of[1])
