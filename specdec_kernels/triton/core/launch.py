# SPDX-License-Identifier: Apache-2.0
"""Kernel launches. The tiles of a row do not depend on the batch, so a row gives the same bits in any batch."""

from __future__ import annotations

import contextlib
import functools
from typing import NamedTuple

import numpy
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from .memory import EntryIds, Store, Values, Views, is_present
from .row import Rows, Sampling, Scratch, Sizes

CHUNK = 1024

# Arguments that change from call to call. Specialising kernels on their values would recompile them without making any
# faster.
VARYING = (
    "B", "G", "D", "K", "L", "M", "N", "W", "k", "m", "n", "w", "chunks", "first_slot",
    "max_kept", "levels", "total", "room", "top_count", "bonus", "columns", "domain", "keys", "per_program", "units",
    "words", "target_count", "draft_count", "most_steps", "token_batch_stride", "token_stride", "bonus_stride",
    "request_stride", "draft_stride", "level_stride", "node_stride", "seed_stride", "offset_stride",
)  # fmt: skip
SIDES = ("rows", "target", "draft")


class Kernel:
    """A kernel in two variants: specialised on the alignment of rows, and not.

    The aligned variant, with 16-byte loads, is used only if every side's V is a multiple of 16. For other V loads
    cannot be wide, and specialising on a padded row stride would change the order of sums, so the results' bits."""

    def __init__(self, function):
        self.aligned = triton.jit(do_not_specialize=VARYING)(function)
        self.unaligned = triton.jit(do_not_specialize=VARYING, do_not_specialize_on_alignment=SIDES)(function)

    def of(self, args):
        aligned = all(side.V % 16 == 0 for side in args if type(side) is Rows)
        return self.aligned if aligned else self.unaligned


kernel = Kernel  # the decorator


@triton.jit
def _nothing():
    pass


def interpreted() -> bool:
    return isinstance(_nothing, interpreter.InterpretedFunction)


class Table(NamedTuple):
    rows: int  # rows that a program processes at once
    width: int  # lanes of a chunk
    chunks: int  # chunk sums that a program reads together
    few: int  # candidate logits that a filter keeps in a contiguous list
    chunk_count: int
    together: int  # chunks of a row that a program reads at once; some read at_once
    wide_threads: int = 32  # one warp per chunk needs no barrier, and each lane loads 16 bytes at a time
    row_threads: int = 128

    def sizes(self, **changes: int) -> Sizes:
        sizes = dict(ROWS=self.rows, WIDTH=self.width, CHUNKS=self.chunks, TOGETHER=self.together, FEW=self.few)
        return Sizes(**{name: tl.constexpr(size) for name, size in (sizes | changes).items()})

    @property
    def walk_threads(self) -> int:
        """Threads of a program that reads whole rows by itself."""
        return 128 if self.chunk_count == 1 else 256

    @property
    def at_once(self) -> int:
        """Chunks that a program with walk_threads can read together."""
        return min(4, power_of_2(self.chunk_count))

    def per_program(self, slots: int) -> int:
        """Return the chunks per program of a wide launch: more than one only if the programs fill a device anyway."""
        programs = blocks(slots, self.rows) * self.chunk_count
        return min(8, max(1, programs // 8192))


def power_of_2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def columns(n: int, most: int) -> int:
    """Return the columns of a tile for n entries of a row: a power of two from 8 to `most`.

    Triton 3.6 cannot compile a cumulative sum over fewer columns than a thread may hold."""
    return min(most, max(8, power_of_2(n)))


def blocks(n: int, size: int) -> int:
    return -(-n // size)


@functools.cache
def table(V: int) -> Table:
    width, count = columns(V, CHUNK), blocks(V, CHUNK)
    rows = min(16, CHUNK // width)
    if interpreted():  # its time grows with the number of operations, not of elements
        rows = 128 * CHUNK // width if count == 1 else 32 if count < 16 else 8
    return Table(rows, width, columns(count, 256), columns(V, 2048), count, 1 if count == 1 else 2)


def elements() -> int:
    """Return the elements per program of an elementwise launch."""
    return 1 << 15 if interpreted() else 256


class Layout(NamedTuple):
    """The rows of a side: B requests with at most G drafts each. In memory, `extra` rows follow the drafts' rows of a
    request; kernels read `bonus` of them."""

    B: int
    G: int
    bonus: int
    extra: int
    cu_draft: torch.Tensor | None = None
    D: int = 0
    count: torch.Tensor | None = None  # number of requests that are present

    @classmethod
    def flat(cls, N: int, count: torch.Tensor | None) -> Layout:
        return cls(N, 0, 1, 1, count=count)

    @property
    def slots(self) -> int:
        return self.B * (self.G + self.bonus)

    @property
    def rows(self) -> int:
        return self.B * (self.G + self.extra) if self.cu_draft is None else self.D + self.extra * self.B

    def arguments(self):
        """Return the layout as arguments of a kernel that reads every row. `extra` is not among them: Rows holds it."""
        return self.B, self.G, self.bonus, self.D, self.cu_draft, self.count


FLAGS = {False: tl.constexpr(False), True: tl.constexpr(True)}
NO_VALUES = Values(None, None)
NO_SAMPLING = Sampling(*[NO_VALUES] * 5)
NO_SCRATCH, NO_STORE = Scratch(None, None), Store(None, None, None, None)
NO_IDS = EntryIds(None, None)
NO_VIEWS = Views(
    FLAGS[False], *[NO_VALUES] * 3, *[None] * 7, NO_VALUES, *[None] * 5, NO_VALUES, *[None] * 6, NO_VALUES, *[None] * 9
)
NO_ROWS = Rows(None, 0, 0, 0, False, None, NO_SAMPLING, NO_SCRATCH, FLAGS[False], NO_STORE, NO_VIEWS, NO_IDS)


def rows(
    memory, probs=False, stats=None, sampling=NO_SAMPLING, scratch=NO_SCRATCH, layout=None, store=NO_STORE
) -> Rows:
    """Return a side as a kernel's argument. Ragged rows without a store have one index for all: batch_stride is 0."""
    ragged = layout is not None and layout.cu_draft is not None
    batch_stride = 0 if ragged and store is NO_STORE else memory.batch_stride
    extra = layout is not None and layout.extra > 0
    return Rows(
        memory.data, memory.V, batch_stride, memory.row_stride, extra, stats, sampling, scratch, FLAGS[probs], store,
        memory.views, memory.ids,
    )  # fmt: skip


def empty(like, size, dtype) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device=like.data.device)


def scratch(rows, count: int, slots: int, few: int | None) -> Scratch:
    """Allocate scratch for the chunk sums of `count` rows, and for filters of `slots` rows unless `few` is None."""
    chunks = blocks(rows.V, CHUNK)
    maxes, sums = empty(rows, (2, count, chunks), torch.float32)
    if few is None:
        return Scratch(maxes, sums)
    return Scratch(maxes, sums, empty(rows, (slots, chunks), torch.int32), empty(rows, (slots, few), torch.float32))


@contextlib.contextmanager
def interpreting():
    """Return a context manager for one launch in Triton's interpreter.

    The interpreter patches triton.language at every call of a function inside a kernel. Patching once per launch and
    module is enough, and makes the launch twice as fast."""
    patched = set()

    def call(self, *args, **kwargs):
        module = id(self.fn.__globals__)
        if module not in patched:
            patched.add(module)
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **kwargs)

    stand_ins = {
        (interpreter.InterpretedFunction, "__call__"): call,
        (interpreter, "_implicit_cvt"): _bools_are_one_bit(interpreter._implicit_cvt),
        (interpreter, "_patch_lang_tensor"): _one_value_is_an_index(interpreter._patch_lang_tensor),
    }
    theirs = {(holder, name): getattr(holder, name) for holder, name in stand_ins}
    for (holder, name), ours in stand_ins.items():
        setattr(holder, name, ours)
    try:
        with numpy.errstate(all="ignore"):  # numpy warns where a GPU does not: exp2 of -inf, an overflow
            yield
    finally:
        for (holder, name), value in theirs.items():
            setattr(holder, name, value)


def _bools_are_one_bit(convert):
    """Work around Triton 3.6, which converts a bool to 32 bits and then refuses it where it wants an int1."""

    def converted(arg):
        if isinstance(arg, bool):
            return tl.tensor(interpreter.TensorHandle(numpy.array([arg]), tl.int1), tl.int1)
        return convert(arg)

    return converted


def _one_value_is_an_index(patch):
    """Work around Triton 3.6, which takes int() of an array of one value. numpy 2.4 refuses that."""

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return patched


recorded = None  # a list: launches are appended to it instead of being run (python_tests/support/aot.py)


@functools.cache
def options(threads: int, lanes: int) -> dict:
    """Return the options of a launch with warps of 32 lanes (NVIDIA) or 64 (AMD)."""
    # Without a bound on registers, ptxas picks an occupancy by itself, and spills a few registers to reach it.
    nvidia = {"maxnreg": 168 if threads == 128 else 255} if lanes == 32 else {}
    return {"num_warps": max(1, threads // lanes), "enable_fp_fusion": True, **nvidia}


def device_of(args) -> torch.device | None:
    for x in args:
        if isinstance(x, torch.Tensor):
            return x.device
        if isinstance(x, tuple) and (device := device_of(x)) is not None:
            return device
    return None


def run(kernel, grid, threads, *args, **constants):
    """Launch on the device that holds the arguments."""
    kernel = kernel.of(args)
    if recorded is not None:
        recorded.append((kernel, args, constants, threads))
        return
    device = device_of(args)
    with torch.cuda.device(device) if device.type == "cuda" else interpreting():
        kernel[grid](*args, **constants, **options(threads, 64 if torch.version.hip else 32))


def run_rows(kernel, table: Table, count: int, *args, threads: int | None = None, **constants) -> None:
    """Launch a program for every `table.rows` of `count` rows."""
    if count:
        run(kernel, (blocks(count, table.rows),), threads or table.row_threads, *args, **constants, S=table.sizes())


def run_chunks(kernel, table: Table, count: int, *args, threads: int | None = None, **constants) -> None:
    """Launch programs that share the chunks of `count` rows. The number of chunks per program is added to `args`."""
    if count:
        per_program = table.per_program(count)
        grid = blocks(count, table.rows), blocks(table.chunk_count, per_program)
        run(kernel, grid, threads or table.wide_threads, *args, per_program, **constants, S=table.sizes())


def run_elements(kernel, count: int, *args, **constants) -> None:
    """Launch an elementwise kernel on `count` elements."""
    if count:
        size = elements()
        run(kernel, (blocks(count, size),), 128, *args, **constants, BLOCK=size)


@kernel
def absent_kernel(out, count, N, columns, VALUE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = at // columns
    tl.store(out + at, tl.full([BLOCK], VALUE, tl.int32), mask=(row < N) & ~is_present(count, row))


def put_absent(count, *results) -> None:
    """Write a value to the absent rows or requests of results. results: pairs (tensor [N, ...], value)."""
    if count is None:
        return
    for out, value in results:
        run_elements(absent_kernel, out.numel(), out, count, len(out), out.numel() // max(len(out), 1), VALUE=value)
