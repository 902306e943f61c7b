# SPDX-License-Identifier: Apache-2.0
"""Predictions of peers, simulated like our calls, from the bytes that each moves according to its source.

Their grids and instruction counts were not read from machine code (instructions per 16 bytes are assumed), so these
guesses are more favourable than those of our calls.
"""

from __future__ import annotations

from typing import NamedTuple

from tools.gpu_model.calls import Setting
from tools.gpu_model.queues import Block, Load, Wait, Work, simulate

MOST_BLOCKS = 6000  # with more of them, several blocks are simulated as one
END = 300  # clocks of a block after its last pass: assumed


class Pass(NamedTuple):
    """A pass of many blocks over rows, each over `entries` entries of one row."""

    rows: int
    bytes: int  # per entry, in all
    per16: float  # instructions per 16 bytes
    entries: int


class Rows(NamedTuple):
    """One block of 1024 threads per row: tiles of 4096 entries in turn, two in flight, each with a block reduction."""

    rows: int
    bytes: int
    passes: int


class Each(NamedTuple):
    """One warp per request: `share` of the clocks of one of our tests of a draft."""

    share: float


Kernel = Pass | Rows | Each


def peers(B: int, G: int) -> dict[str, list[Kernel]]:
    R, D, accept, emit = B * (G + 1), B * G, Each(0.75), Each(0.25)
    return {
        "SGLang BlockwiseRejection, bf16 draft logits": [
            Pass(2 * D, 2, 60, 8192),
            accept,
            Pass(2 * B, 2, 70, 4096),
            emit,
        ],
        "vLLM V2 temperature, bf16 draft logits": [
            Pass(R, 6, 20, 4096),
            Pass(R, 8, 20, 4096),
            Pass(D, 6, 50, 8192),
            accept,
            Pass(B, 6, 60, 1024),
            emit,
        ],
        "vLLM V2 one-hot, temperature 1": [Pass(D, 2, 60, 8192), accept, Pass(B, 2, 60, 1024), emit],
        "FlashInfer softmax x2 + chain": [Rows(R, 18, 3), Rows(D, 18, 3), Rows(B, 16, 2)],
    }


def bytes_of(kernels: list[Kernel], V: int) -> int:
    return sum(k.rows * k.bytes * V for k in kernels if not isinstance(k, Each))


def call(s: Setting, kernels: list[Kernel], V: int) -> float:
    """Return the microseconds of a peer's launches. They need no fence, since a launch follows each."""
    us = s.c["first_us"]
    for n, kernel in enumerate(kernels):
        us += s.c["gap_us"] if n else 0
        if isinstance(kernel, Each):
            us += (s.c["prologue"] + kernel.share * s.c["judge"]) / s.c["clk"] * 1e6
        else:
            us += _launch(s, kernel, V)
    return us


def _launch(s: Setting, kernel: Pass | Rows, V: int) -> float:
    entries = kernel.entries if isinstance(kernel, Pass) else V
    blocks = kernel.rows * -(-V // entries)
    group = max(1, blocks // MOST_BLOCKS)

    def block(i: int) -> Block:
        yield Wait(s.c["prologue"])
        for _ in range(min(group, blocks - i * group)):
            if isinstance(kernel, Pass):
                moved = entries * kernel.bytes
                yield Load(moved)
                yield Work(moved / 512 * kernel.per16, moved / 512 * kernel.per16 / 8)
                continue
            for _ in range(8):
                yield Load(V * kernel.bytes / 8)
                yield Wait(kernel.passes * V / 4096 / 8 * (s.c["l2_lat"] / 2 + 250))
        yield Wait(END)

    return simulate(s.c, -(-blocks // group), block, 8 if isinstance(kernel, Pass) else 2).us
