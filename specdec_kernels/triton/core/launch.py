# SPDX-License-Identifier: Apache-2.0
"""How the kernels are launched: block sizes by vocabulary, and never by batch, so that the bits of a row depend on the row alone."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
from triton.runtime.interpreter import InterpretedFunction

from . import interpret

CHUNK = 1024

STRIDES = ("batch_stride", "row_stride", "p_stride", "q_stride") + tuple(
    f"{side}_{dimension}_stride" for side in ("target", "draft") for dimension in ("batch", "row")
)
# Numbers that change from call to call and make no kernel faster: known values of them would only compile it again.
VARYING = (
    "B", "G", "D", "N", "n", "bonus", "extra", "target_extra", "draft_extra", "domain", "per_program", "token_batch_stride",
    "token_stride", "bonus_stride", "temperature_stride", "top_k_stride", "top_p_stride", "min_p_stride", "seed_stride", "offset_stride",
    "slot_stride", "k_stride", "rule_stride", "alpha_stride", "second_stride",
    "K", "L", "W", "keys", "units", "words", "request_stride", "draft_stride", "level_stride", "node_stride", "prefix_stride", "start_stride",
    "target_count", "draft_count", "columns", "most_links",
    "draft_temperature_stride", "draft_top_k_stride", "draft_top_p_stride", "draft_min_p_stride",
)  # fmt: skip


class Kernel:
    """Row strides are known as multiples of 16, for 16-byte loads, only where the vocabulary is one: elsewhere the loads cannot
    be wide, and padding between rows would change the order of sums and with it the last bits."""

    def __init__(self, function):
        self.aligned = triton.jit(do_not_specialize=VARYING)(function)
        self.unaligned = triton.jit(do_not_specialize=VARYING + STRIDES)(function)

    def of(self, args):
        vocabularies = [x for name, x in zip(self.aligned.arg_names, args) if name in ("V", "Vq")]
        return self.aligned if all(V % 16 == 0 for V in vocabularies) else self.unaligned


kernel = Kernel  # the decorator


class Table(NamedTuple):
    rows: int  # rows that a program serves at once
    width: int  # lanes of a chunk
    chunks: int  # chunk sums that a program looks at together
    few: int  # logits that a filter holds side by side
    chunk_count: int
    together: int  # listed chunks that a filter reads at once
    wide_threads: int = 32  # a warp per chunk: no barrier, and 16 bytes per lane and load
    row_threads: int = 128

    @property
    def walk_threads(self) -> int:
        """Of a program that reads whole rows by itself."""
        return 128 if self.chunk_count == 1 else 256

    @property
    def at_once(self) -> int:
        """Chunks that such a program reads together."""
        return min(4, power_of_2(self.chunk_count))

    def per_program(self, slots: int) -> int:
        """Chunks per program of a wide launch: enough programs to fill a device first, then fewer."""
        programs = blocks(slots, self.rows) * self.chunk_count
        return min(8, max(1, programs // 8192))


def power_of_2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def blocks(n: int, size: int) -> int:
    return -(-n // size)


@functools.cache
def table(V: int) -> Table:
    width, count = min(CHUNK, power_of_2(V)), blocks(V, CHUNK)
    if interpreted():  # it pays per operation and not per element
        rows, together = 128 * CHUNK // width if count == 1 else 32 if count < 16 else 8, 2
    else:
        rows, together = min(16, CHUNK // width), 2
    return Table(rows, width, min(256, power_of_2(count)), min(2048, power_of_2(V)), count, 1 if count == 1 else together)


@functools.cache
def interpreted() -> bool:
    from .chunk_sums import scan_kernel

    return isinstance(scan_kernel.aligned, InterpretedFunction)


def elements() -> int:
    """Of an elementwise launch, per program."""
    return 1 << 15 if interpreted() else 256


class Layout(NamedTuple):
    """Rows of a side: of B requests with at most G drafts, `bonus` rows beyond the drafts to be read, `extra` beyond them stored."""

    B: int
    G: int
    bonus: int
    extra: int
    cu_draft: torch.Tensor | None = None
    D: int = 0

    @classmethod
    def flat(cls, N: int) -> Layout:
        return cls(N, 0, 1, 1)

    @property
    def slots(self) -> int:
        return self.B * (self.G + self.bonus)

    @property
    def rows(self) -> int:
        return self.B * (self.G + self.extra) if self.cu_draft is None else self.D + self.extra * self.B

    def arguments(self):
        return self


def empty(like, size, dtype) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device=like.data.device)


class Sums:
    """Chunk sums of rows: the largest finite logit of each chunk and the sum of exp((z - it) * scale)."""

    def __init__(self, rows, layout: Layout):
        self.chunks = table(rows.V).chunk_count
        self.maxes, self.sums = empty(rows, (2, layout.rows, self.chunks), torch.float32)


recorded = None  # a list while launches are noted instead of made (aot.py)


def options(threads: int, lanes: int) -> dict:
    """Of a launch with warps of 32 lanes (NVIDIA) or 64 (AMD)."""
    # Without a bound, ptxas aims at an occupancy of its own and spills a few registers to get there.
    nvidia = {"maxnreg": 168 if threads == 128 else 255} if lanes == 32 else {}
    return {"num_warps": max(1, threads // lanes), "enable_fp_fusion": True, **nvidia}


def run(kernel, grid, threads, *args, **constants):
    """Launch on the device that holds the arguments."""
    kernel = kernel.of(args)
    if recorded is not None:
        recorded.append((kernel, args, constants, threads))
        return
    device = next(a.device for a in args if isinstance(a, torch.Tensor))
    with torch.cuda.device(device) if device.type == "cuda" else interpret.launching():
        kernel[grid](*args, **constants, **options(threads, 64 if torch.version.hip else 32))
