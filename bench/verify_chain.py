# SPDX-License-Identifier: Apache-2.0
"""Benchmark of verify_chain against the best eager torch we could write, other engines' kernels, and a plain read.

Bytes: each row that a request must read, counted once. A request stops at its first rejection, or after its last draft.
Without stats it reads its target rows and its draft rows up to the stop. With the drafter's stats it reads its target
rows up to the stop, and the draft row of a rejection. Greedy requests and one-hot drafts have no draft row to read.
`second_read` adds the rows that our kernels read again: after a rejection the target row, and the draft row if its
stats were not given; with filters also every target row. Greedy requests read no row again.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import SimpleNamespace

import torch

import specdec_kernels as sk
from bench.harness import DTYPES, Case, Cases, Work, flat_logits, logits
from bench.peers import eager, flashinfer, sglang, switched, triton, vllm
from specdec_kernels.example_calls import op_arguments

G = 5
CLOSENESS = 1.1  # noise added to the target's scaled logits; about 70% of the drafts are then accepted (67 to 76%)


@dataclass(frozen=True)
class Step:
    B: int
    V: int
    dtype: str
    stats: bool = True  # the drafter's stats are given
    one_hot: bool = False  # drafts are the draft's likeliest tokens, without rows
    temperature: float = 1.0  # of both models
    top_k: int = 0  # filters: of the target only
    top_p: float = 1.0
    min_p: float = 0.0
    flat: bool = False  # standard normal logits, whose nucleus is most of the vocabulary
    closeness: float = CLOSENESS
    compiled: bool = False  # torch.compile instead of other engines; it compiles for seconds, so these cases come last

    @property
    def label(self) -> str:
        parts = [f"B={self.B} V={self.V} {self.dtype}"]
        parts += ["one-hot"] if self.one_hot else ["stats"] * self.stats
        parts += ["greedy" if self.temperature == 0 else f"T={self.temperature:g}".replace("0.", ".")] * (
            self.temperature != 1
        )
        parts += [f"top_k={self.top_k}"] * bool(self.top_k) + [f"top_p={self.top_p:g}".replace("0.", ".")] * (
            self.top_p < 1
        )
        parts += [f"min_p={self.min_p:g}".replace("0.", ".")] * bool(self.min_p) + ["flat"] * self.flat
        parts += ["all accepted"] * (self.closeness == 0) + ["torch.compile"] * self.compiled
        return " ".join(parts)

    @property
    def filters(self) -> bool:
        return bool(self.top_k or self.top_p < 1 or self.min_p)


FILTERED = {"temperature": 0.7, "top_k": 50, "top_p": 0.9}
ONE_FILTER = [{"top_k": 40}, {"top_k": 50}, {"top_k": 200}, {"min_p": 0.05}, {"top_p": 0.9}]


def steps(device: str):
    if device == "cpu":
        for dtype in ("fp32", "bf16"):
            for V in (49152, 151936):
                for B in (8, 64):
                    yield Step(B, V, dtype, stats=False)
                    yield Step(B, V, dtype)
                    yield Step(B, V, dtype, **FILTERED)
        for V in (49152, 151936):
            for flat in (False, True):
                for one in [{}, *ONE_FILTER]:
                    yield Step(8, V, "bf16", temperature=0.7, flat=flat, **one)
        return
    warm = {"temperature": 0.7}
    yield Step(64, 151936, "bf16", **warm)  # the most important case: first, in case time runs out
    for B in (1, 8, 16, 32):
        yield Step(B, 151936, "bf16", **warm)
    for B in (1, 8, 16, 64, 256):
        yield Step(B, 151936, "bf16", one_hot=True, **warm)
    yield Step(256, 151936, "bf16", **warm)
    yield Step(64, 151936, "bf16", **FILTERED)
    yield Step(64, 151936, "bf16", temperature=0.0)
    yield Step(64, 151936, "bf16", stats=False, **warm)
    yield Step(64, 151936, "fp32", **warm)
    for B in (1, 8, 64, 256):
        yield Step(B, 32000, "bf16", **warm)
        for V in (151936, 32000):
            yield Step(B, V, "bf16", **warm, closeness=0.0)
    for B in (1, 8):
        yield Step(B, 151936, "bf16", **FILTERED)
        yield Step(B, 151936, "bf16", temperature=0.0)
    for B in (64, 1):
        yield Step(B, 151936, "bf16", **warm, compiled=True)


def cases(device: str) -> Cases:
    for step in steps(device):
        yield Case(step.label, functools.partial(_step, step, device), last=step.compiled)
    for B, V in ((8, 151936), (64, 151936), (1, 32000)):
        yield Case(f"B={B} V={V} bf16 race", functools.partial(_race, Step(B, V, "bf16"), device))
    for how in ("torch.ops", "wrapper"):
        yield Case(f"B=1 V=64 {how}", functools.partial(_call, how, device))


def inputs(step: Step, device: str) -> SimpleNamespace:
    B, V, T = step.B, step.V, step.temperature
    rows = flat_logits if step.flat else logits
    target = rows(B, G + 1, V, dtype=DTYPES[step.dtype], device=device, seed=B)
    draft = target[:, :G].clone()
    if step.closeness:
        generator = torch.Generator(device).manual_seed(1)
        noise = torch.empty(B, G, V, device=device).normal_(0, step.closeness * (T or 1.0), generator=generator)
        draft = (draft + noise).to(draft.dtype)
    seed, offset = torch.arange(B, device=device), torch.zeros(B, dtype=torch.int64, device=device)
    random = {
        "seed": seed.repeat_interleave(G),
        "offset": offset.repeat_interleave(G),
        "slot": torch.arange(G, device=device).repeat(B),
    }
    drawn = sk.sample(sk.Rows(draft.view(B * G, V), temperature=None if T == 1 else T), **random)
    tokens = draft.argmax(-1) if step.one_hot else drawn.tokens.view(B, G)
    x = SimpleNamespace(target=target, tokens=tokens, draft=None if step.one_hot else draft, seed=seed, offset=offset)
    x.draft_stats = drawn.rows.stats.view(B, G, 4) if step.stats and not step.one_hot else None
    x.temperature = None if T == 1 else torch.full((B,), T, device=device)
    x.draft_temperature = x.temperature if x.draft_stats is None else None
    x.top_k = torch.full((B,), step.top_k, device=device) if step.top_k else None
    x.top_p = torch.full((B,), step.top_p, device=device) if step.top_p < 1 else None
    x.min_p = torch.full((B,), step.min_p, device=device) if step.min_p else None
    return x


def arguments(x: SimpleNamespace) -> dict:
    """Return the keyword arguments of the public function."""
    target = sk.Rows(x.target, x.temperature, x.top_k, x.top_p, x.min_p)
    draft = None if x.draft is None else sk.Rows(x.draft, x.draft_temperature, stats=x.draft_stats)
    return {"target": target, "draft_tokens": x.tokens, "draft": draft, "seed": x.seed, "offset": x.offset}


def ours(x: SimpleNamespace) -> sk.VerifyChainOutput:
    return sk.verify_chain(**arguments(x))


def rows_read(step: Step, n: torch.Tensor) -> tuple[int, int]:
    """Return the number of rows that must be read for n [B] accepted drafts, and of rows read a second time."""
    target, rejected = int((n + 1).sum()), int((n < G).sum())
    if step.temperature == 0:
        return target, 0
    if step.one_hot:
        draft, again = 0, rejected
    elif step.stats:
        draft, again = rejected, rejected
    else:
        draft, again = int((n + 1).clamp(max=G).sum()), 2 * rejected
    return target + draft, again + (target if step.filters else 0)


def tokens_per_request(output: object) -> float | None:
    """Return the mean number of tokens per request of any variant's output.

    The output is tokens padded with -1, alone or first in a tuple, or a count per request.
    """
    if isinstance(output, sglang.Accepted):
        return output.drafts.double().mean().item() + 1
    if isinstance(output, tuple):
        output = output[0]
    if output is None or output.dim() == 0:
        return None
    counts = output if output.dim() == 1 else (output >= 0).sum(1)
    return counts.double().mean().item()


def transformers_loop(x: SimpleNamespace) -> None:
    from transformers.generation.utils import _speculative_sampling

    for b in range(x.tokens.size(0)):
        _speculative_sampling(
            x.tokens[b : b + 1], x.draft[b : b + 1].float(), x.tokens.size(1), x.target[b : b + 1].float()
        )


def _step(step: Step, device: str) -> Work:
    x = inputs(step, device)
    T = step.temperature
    rows, again = rows_read(step, ours(x).num_accepted)
    row = step.V * x.target.element_size()
    x.bytes = torch.empty(rows * row // 4, device=device).uniform_()
    work = Work(x, ours, rows * row, again * row, outcome=tokens_per_request)
    work.peers["sum"] = lambda x: x.bytes.sum()

    if T == 0:
        plain = lambda x: eager.greedy(x.target, x.tokens)  # noqa: E731
    else:
        plain = lambda x: eager.step(  # noqa: E731
            x.target, x.tokens, x.draft, x.draft_stats, x.temperature, x.temperature, step.top_k, step.top_p, step.min_p
        )
    work.peers["eager"] = plain
    if device == "cpu":
        if not step.stats:
            work.peers["transformers"] = transformers_loop
        return work

    if step.compiled:
        work.peers["torch.compile"] = torch.compile(plain, dynamic=False)
    else:
        _switched(work, step)
        _engines(work, step, device)
    return work


def _race(step: Step, device: str) -> Work:
    """Time a race whose drafts won the same race on the draft's rows, beside the exact method on drawn drafts."""
    x = inputs(step, device)
    position = x.offset[:, None] + torch.arange(G, device=device)
    won = sk.sample(
        x.draft.flatten(0, 1), race=True, seed=x.seed.repeat_interleave(G), offset=position.flatten()
    ).tokens
    x.won = won.view(step.B, G)

    def race(x):
        return sk.verify_chain(x.target, x.won, method="race", seed=x.seed, offset=x.offset)

    visited, row = int((race(x).num_accepted + 1).sum()), step.V * x.target.element_size()
    work = Work(x, race, visited * row, visited * row, outcome=tokens_per_request)  # for stats, then to race
    work.peers["exact"] = ours
    if device == "cuda":
        work.peer("ours in triton", lambda: triton.same("verify_chain", race, device))
    return work


def _switched(work: Work, step: Step) -> None:
    """Add our own kernels on other paths as peers: in Triton, without overlapping launches, for B < 64 streaming."""
    work.peer("ours in triton", lambda: triton.same("verify_chain", ours, "cuda"))
    work.peer("ours, no overlap", lambda: switched.same(ours, switched.OVERLAP, "0"))
    if step.B < 64:
        work.peer("ours, streaming", lambda: switched.same(ours))


def _engines(work: Work, step: Step, device: str) -> None:
    """Add the engines that can do this step as peers; for the others, the reason why not."""
    B, V, T, x = step.B, step.V, step.temperature, work.inputs
    if T == 0 or step.one_hot:
        work.skipped["flashinfer"] = "has no greedy step, and takes every draft's probabilities"
    else:
        work.peer("flashinfer", lambda: flashinfer.chain(T != 1, step.top_k, step.top_p, step.stats))
    if step.filters:
        work.skipped["vllm"] = "filters are no part of its rejection_sample"
    else:
        work.peer("vllm", lambda: vllm.chain(B, G, T, device))
    if step.filters or T == 0 or step.one_hot:
        work.skipped["sglang"] = "its block-wise rejection takes temperatures above 0, rows of drafts, and no filters"
    else:
        work.peer("sglang", lambda: sglang.chain(B, T, device))

    if "flashinfer" in work.peers:
        x.tokens32 = x.tokens.to(torch.int32)
        x.row_temperature = torch.full((B * (G + 1),), T, device=device)
        x.draft_row_temperature = torch.full((B * G,), T, device=device)
        if step.stats:
            x.draft_probs = flashinfer.probabilities(x.draft.view(B * G, V), x.draft_row_temperature).view(B, G, V)
    x.candidates = torch.cat([torch.zeros_like(x.tokens[:, :1]), x.tokens], 1)
    if "vllm" in work.peers:
        x.draft_sampled = x.candidates.view(-1)
        scaled = step.one_hot or T in (0, 1)
        x.scaled_draft = x.draft if scaled else (x.draft.float() / T).to(x.draft.dtype)


def _call(how: str, device: str) -> Work:
    """Return the work of a tiny call, to measure the cost of the call itself."""
    target, draft = (logits(1, n, 64, dtype=torch.float32, device=device, seed=n) for n in (G + 1, G))
    tokens = torch.zeros(1, G, dtype=torch.int64, device=device)
    seed, offset = torch.tensor([1], device=device), torch.tensor([0], device=device)
    x = SimpleNamespace(target=target, tokens=tokens, draft=draft, seed=seed, offset=offset)
    calls = {
        "torch.ops": lambda x: torch.ops.specdec.verify_chain(*x.flat),
        "wrapper": lambda x: sk.verify_chain(x.target, x.tokens, x.draft, seed=x.seed, offset=x.offset),
    }
    # The op's own arguments. Work.bytes is 0 here, so the harness makes no copies of x: they would share these.
    x.flat = op_arguments("verify_chain", calls["wrapper"], x)
    return Work(x, calls[how], peers={"eager": lambda x: eager.step(x.target, x.tokens, x.draft)}, calls=500)
