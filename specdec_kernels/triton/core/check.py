# SPDX-License-Identifier: Apache-2.0
"""What csrc/binding/check.h checks, for torch.ops.specdec.* called without the Python wrappers: "op: argument, wanted,
got"."""

from __future__ import annotations

from typing import NamedTuple, NoReturn

import torch

from specdec_kernels.registry import NOT_GIVEN

from .launch import NO_SAMPLING, NO_VALUES
from .row import Sampling, Values

FLT_MAX = torch.finfo(torch.float32).max
INTEGERS = (torch.int64, torch.int32)
ROWS = (torch.float32, torch.bfloat16, torch.float16)
NAMES = {
    torch.float64: "Double", torch.float32: "Float", torch.float16: "Half", torch.bfloat16: "BFloat16",
    torch.int64: "Long", torch.int32: "Int", torch.int16: "Short", torch.int8: "Char", torch.uint8: "Byte",
    torch.bool: "Bool",
}  # fmt: skip


def fail(op: str, message: str) -> NoReturn:
    raise RuntimeError(f"{op}: {message}")


def that(ok: bool, op: str, message: str) -> None:
    if not ok:
        fail(op, message)


# What every call asks of every tensor makes its message only where it fails: messages cost more than questions.


def given(op: str, **tensors: object) -> None:
    """The tensors that the schema requires."""
    for name, t in tensors.items():
        if t is None:
            fail(op, f"{name} must be a tensor, got None")


def dtype_name(t: torch.Tensor) -> str:
    return NAMES.get(t.dtype, str(t.dtype))


def dim(op: str, name: str, t: torch.Tensor, want: int) -> None:
    if t.dim() != want:
        fail(op, f"{name} must have {want} dimensions, got shape {list(t.shape)}")


def shape(op: str, name: str, t: torch.Tensor, *want: int) -> None:
    if t.shape != want:
        fail(op, f"{name} must have shape {list(want)}, got {list(t.shape)}")


def dtype(op: str, name: str, t: torch.Tensor, want: torch.dtype) -> None:
    if t.dtype != want:
        fail(op, f"{name} must be {NAMES[want]}, got {dtype_name(t)}")


def device(op: str, name: str, t: torch.Tensor, like: torch.Tensor) -> None:
    if t.device != like.device:
        fail(op, f"{name} must be on {like.device}, got {t.device}")


def contiguous(op: str, name: str, t: torch.Tensor) -> None:
    if not t.is_contiguous():
        fail(op, f"{name} must be contiguous, got strides {list(t.stride())}")


class RowMemory(NamedTuple):
    data: torch.Tensor
    V: int
    batch_stride: int
    row_stride: int


def row_memory(op: str, name: str, t: torch.Tensor) -> RowMemory:
    """[N, V], or [B, rows, V]; a row is read in place, so its entries must be neighbours in memory."""
    V = t.size(-1)
    if t.stride(-1) != 1 and V > 1 and t.numel():
        fail(op, f"{name} must be contiguous in its last dimension, got strides {list(t.stride())}")
    if not 1 <= V <= 1 << 24:
        fail(op, f"{name} must have a vocabulary of 1 to 2^24, got {V}")
    if t.dtype not in ROWS:
        fail(op, f"{name} must be float32, bfloat16 or float16, got {dtype_name(t)}")
    return RowMemory(t, V, t.stride(0), t.stride(1) if t.dim() == 3 else t.stride(0))


def integers(op: str, name: str, t: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if t.dtype not in INTEGERS:
        fail(op, f"{name} must be int32 or int64, got {dtype_name(t)}")
    device(op, name, t, like)
    return t


def per_row(op: str, name: str, t: torch.Tensor | None, n: int, like: torch.Tensor, real: bool = False) -> Values:
    """Values of n rows or requests, or one that serves all."""
    if t is None:
        return NO_VALUES
    if t.dim() != 1 or t.size(0) not in (n, 1):
        fail(op, f"{name} must have shape [{n}], got {list(t.shape)}")
    if real:
        dtype(op, name, t, torch.float32)
        device(op, name, t, like)
    else:
        integers(op, name, t, like)
    return Values(t, False) if t.size(0) == 1 else Values(t.contiguous(), True)


def present(op: str, name: str, t: torch.Tensor | None, n: int, like: torch.Tensor) -> int:
    """num_rows or num_requests [1]: of how many of n the values are looked at, where they are at hand."""
    if t is None:
        return n
    if t.shape != (1,):
        fail(op, f"{name} must have shape [1], got {list(t.shape)}")
    integers(op, name, t, like)
    return min(max(int(t), 0), n) if like.device.type == "cpu" else n


def check_stats(op: str, name: str, t: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    dtype(op, name, t, torch.float32)
    device(op, name, t, like)
    contiguous(op, name, t)
    return t


def uniforms(op: str, t: torch.Tensor | None, n: int, columns: int, like: torch.Tensor) -> torch.Tensor | None:
    if t is not None:
        shape(op, "uniforms", t, n, columns)
        dtype(op, "uniforms", t, torch.float64)
        device(op, "uniforms", t, like)
        contiguous(op, "uniforms", t)
    return t


def randomness(op: str, seed, offset, uniforms, temperature: Values, *certain) -> None:
    """What is drawn has something to be drawn by; where one of `certain` is given nothing may be left to chance."""
    alone = "seed" if offset is None else "offset"
    that((seed is None) == (offset is None), op, f"seed and offset go together, got {alone} alone")
    number = temperature.data if temperature.each is None else None
    greedy = number is not None and number < torch.finfo(torch.float32).tiny
    may_be = isinstance(temperature.data, torch.Tensor)
    given = greedy or may_be or any(x is not None for x in (uniforms, seed, *certain))
    that(given, op, "needs seed and offset, or uniforms, got neither")


MOST_KEPT = float(1 << 24)  # no vocabulary is larger, and float32 holds it
_RANGES = (  # name, what is wanted in words, whether a value is that, and whether it is off
    ("temperature", "finite and >= 0", lambda t: 0 <= t <= FLT_MAX, lambda t: False),
    ("top_k", ">= 1, or 0 or -1 for off", lambda k: k >= -1, lambda k: k <= 0),
    ("top_p", "in (0, 1]", lambda p: 0 < p <= 1, lambda p: p == 1),
    ("min_p", "in [0, 1]", lambda p: 0 <= p <= 1, lambda p: p == 0),
)


class Numbers(NamedTuple):
    """Numbers that serve every row or request; None where none is given."""

    values: tuple

    @classmethod
    def of(cls, op: str, name: str, given, count: int) -> Numbers:
        """`given` holds so many, NOT_GIVEN or NaN where none is given; or nothing, or None."""
        given = given or ()
        that(len(given) in (0, count), op, f"{name} must hold {count} numbers or none, got {len(given)}")
        return cls(tuple(x if x > NOT_GIVEN else None for x in given) or (None,) * count)

    def given(self) -> bool:
        return any(x is not None for x in self.values)


class GivenRows(NamedTuple):
    """The rows of one side as the dispatcher hands them over (csrc/binding/rows.h)."""

    name: str  # in errors: "target", "draft"
    logits: torch.Tensor | None
    temperature: torch.Tensor | None
    top_k: torch.Tensor | None
    top_p: torch.Tensor | None
    min_p: torch.Tensor | None
    numbers: list | None
    stats: torch.Tensor | None
    kind: int
    row: torch.Tensor | None


def sampling(op: str, side: str, tensors, numbers, like: torch.Tensor, n: int, seen: int) -> Sampling:
    """temperature, top_k, top_p and min_p, as tensors or numbers; `side` names them in errors. Values of tensors are
    looked at only on the CPU, of the first `seen`."""
    numbers = Numbers.of(op, f"{side}.numbers", numbers, 4)
    if not numbers.given() and all(t is None for t in tensors):
        return NO_SAMPLING
    out = []
    for t, x, (field, wanted, inside, off) in zip(tensors, numbers.values, _RANGES):
        name = f"{side}.{field}"
        that(t is None or x is None, op, f"{name} must be a tensor or a number, got both")
        values = per_row(op, name, t, n, like, real=field != "top_k")
        of_tensor = t is not None and like.device.type == "cpu"
        for i, value in enumerate(t[:seen].tolist() if of_tensor else []):
            that(inside(value), op, f"{name} must be {wanted}, got {value:g} at index {i}")
        if x is not None:
            that(inside(x), op, f"{name} must be {wanted}, got {x:g}")
            values = NO_VALUES if off(x) else Values(min(x, MOST_KEPT) if field == "top_k" else x, None)
        out.append(values)
    if numbers.given() and out[0].data is None:  # so that something is, where every number is off
        out[0] = Values(1.0, None)
    return Sampling(*out)


def sampling_of(op: str, rows: GivenRows, like: torch.Tensor, n: int, seen: int) -> Sampling:
    tensors = rows.temperature, rows.top_k, rows.top_p, rows.min_p
    return sampling(op, rows.name, tensors, rows.numbers, like, n, seen)


def side(op: str, rows: GivenRows, sampling: Sampling, lead: tuple, like: torch.Tensor) -> RowMemory:
    """Rows of one side, of shape [*lead, V]."""
    logits, stats, kind = f"{rows.name}.logits", f"{rows.name}.stats", f"{rows.name}.kind"
    that(rows.kind in (0, 1), op, f"{kind} must be 0 (logits) or 1 (probabilities), got {rows.kind}")
    dim(op, logits, rows.logits, len(lead) + 1)
    device(op, logits, rows.logits, like)
    memory = row_memory(op, logits, rows.logits)
    shape(op, logits, rows.logits, *lead, memory.V)
    if rows.stats is not None:
        shape(op, stats, rows.stats, *lead, 4)
        check_stats(op, stats, rows.stats, like)
    given = sampling.given()
    wanted = f"{stats} and sampling parameters need logits, got {kind} 1 (probabilities)"
    that(rows.kind == 0 or (rows.stats is None and not given), op, wanted)
    that(rows.stats is None or not given, op, f"{stats} already hold the sampling parameters: give one or the other")
    return memory


def missing(op: str, rows: GivenRows, sampling: Sampling) -> None:
    """A side that is missing has nothing else."""
    wanted = f"{rows.name}.row, {rows.name}.stats and sampling parameters need {rows.name}.logits, got none"
    that(rows.stats is None and rows.row is None and not sampling.given(), op, wanted)


def row_pair(op, p, p_stats, q, q_stats):
    """A target's rows p [N, V] and a draft's q [N, Vq], with their stats: N, and where both sides' rows lie."""
    dim(op, "p.logits", p, 2)
    p_rows = row_memory(op, "p.logits", p)
    dim(op, "q.logits", q, 2)
    device(op, "q.logits", q, p)
    q_rows = row_memory(op, "q.logits", q)
    N = p.size(0)
    shape(op, "q.logits", q, N, q_rows.V)
    alone = "q.stats" if p_stats is None else "p.stats"
    that((p_stats is None) == (q_stats is None), op, f"p.stats and q.stats go together, got {alone} alone")
    if p_stats is not None:
        for name, x in (("p.stats", p_stats), ("q.stats", q_stats)):
            shape(op, name, x, N, 4)
            check_stats(op, name, x, p)
    return N, p_rows, q_rows
