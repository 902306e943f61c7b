# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.stress``: replay graphs of real sizes in parallel on separate streams, and compare all results.

Every result must equal the first one, bit for bit. The comparison is part of the graphs, so the streams wait for the
host only once in 50 replays. The order of blocks' accesses varies from replay to replay, which no simulated device
shows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Annotated

import torch
import typer

import specdec_kernels as sk
from bench import verify_chain
from bench.harness import DTYPES, logits

Call = Callable[[], tuple[torch.Tensor, ...]]


def calls(B: int, V: int) -> dict[str, Call]:
    """Return one call per stream: exact chains with the draft's stats, without them, and with filters; and draws."""
    step = lambda **options: verify_chain.Step(B, V, "bf16", temperature=0.7, **options)
    with_stats, without = (verify_chain.inputs(step(stats=stats), "cuda") for stats in (True, False))
    filtered = verify_chain.inputs(step(top_k=50, top_p=0.9), "cuda")
    rows = logits(B, V, dtype=DTYPES["bf16"], device="cuda", seed=1)
    random = {"seed": with_stats.seed, "offset": with_stats.offset}
    return {
        "chain": lambda: verify_chain.ours(with_stats),
        "chain without stats": lambda: verify_chain.ours(without),
        "chain with filters": lambda: verify_chain.ours(filtered),
        "sample": lambda: sk.sample(sk.Rows(rows, temperature=0.7), k=4, replacement=False, **random)[:2],
    }


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view({4: torch.int32, 8: torch.int64}[x.element_size()]) if x.is_floating_point() else x


class Stressed:
    """A call and the comparison of its result with the first one, captured in a graph on its own stream."""

    def __init__(self, call: Call) -> None:
        self.stream, self.graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        self.first = [x.clone() for x in call()]  # the graph reads them again
        self.wrong = torch.zeros(1, dtype=torch.int64, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            for x, y in zip(call(), self.first):
                self.wrong.add_((bits(x) != bits(y)).any())

    def replay(self) -> None:
        with torch.cuda.stream(self.stream):
            self.graph.replay()


def main(
    batch: Annotated[int, typer.Option(help="requests")] = 256,
    vocabulary: Annotated[int, typer.Option(help="V")] = 151_936,
    replays: Annotated[int, typer.Option(help="of each graph")] = 3000,
    seconds: Annotated[float, typer.Option(help="replay no more after so many")] = 20,
) -> None:
    stressed = {name: Stressed(call) for name, call in calls(batch, vocabulary).items()}
    torch.cuda.synchronize()
    began, done = time.monotonic(), 0
    while done < replays and time.monotonic() - began < seconds:
        for _ in range(min(50, replays - done)):
            for one in stressed.values():
                one.replay()
            done += 1
        torch.cuda.synchronize()
    wrong = {name: int(one.wrong) for name, one in stressed.items()}
    for name, n in wrong.items():
        if n:
            print(f"{name}: {n} tensors in {done} replays are not the first answer's")
    verdict = "every answer the first one" if not any(wrong.values()) else f"WRONG: {wrong}"
    print(f"{len(stressed)} streams, {done} replays each in {time.monotonic() - began:.1f} s: {verdict}")
    sys.exit(any(wrong.values()) or not done)


if __name__ == "__main__":
    typer.run(main)
