# SPDX-License-Identifier: Apache-2.0
"""Repetition, frequency and presence penalties, and the histories of tokens that they read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch


class Penalties(NamedTuple):
    """Penalties on tokens that a request has used before, for ``Rows(..., penalties=...)``.

    The op applies them as it reads a row, in float32, before the temperature and the filters; no row is written. The
    entry e of token v becomes::

        if v is in the prompt, in the output or in the window:   e = e / repetition if e > 0 else e * repetition
        e = e - frequency * count(v)
        if count(v) > 0:   e = e - presence

    count(v) is the number of times that v occurs in the output and in the window. The window holds the drafted tokens
    before the row; in a tree, those on the path from the root. ``verify_chain`` and ``verify_tree`` build the window
    themselves, so each row has the penalties that plain decoding would apply there. For ops on rows [N, V], pass it as
    ``drafted``.

    A history is a list of the tokens used (``ids`` and ``counts``) or a table over all tokens (``prompt_bits`` and
    ``counts``), as engines such as vLLM keep it.

    Args:
        repetition: above 0; 1 is off. None, a number, or float32 with one value per row (in verification: per
            request).
        frequency, presence: finite; 0 is off. None, a number, or float32 like ``repetition``.
        ids: [S, H] int32, the tokens of each request's prompt and output: strictly ascending, then -1. ``history``
            makes it. None: the histories are tables.
        counts: [S, H] int32, how often each of ``ids`` is in the output; 0 for a token that is only in the prompt. In a
            table: how often each token from 0 to H - 1 is in the output. H may be less or more than V.
        prompt_bits: [S, ceil(H / 32)] int32, for tables only: bit v % 32 of word v // 32 is set if token v is in the
            prompt. With tables, the CUDA ops support at most 16,384 distinct used tokens per request. A request with
            more has invalid rows.
        row: int32 or int64, the index of the list or table of each row (in verification: of each request). None: row n
            has index n.
        drafted: [N, n] int32 or int64, the window of each of N rows, padded with -1. Not for verification.

    Example:
        >>> ids, counts = specdec_kernels.history([[3]], [[0, 0, 2]], size=4)
        >>> z = torch.tensor([[2.0, 1.0, 0.5, -0.5, 0.0]])
        >>> specdec_kernels.sample(Rows(z, temperature=0.0, penalties=Penalties(1.3, 0.5, 1.5, ids, counts))).tokens
        tensor([[1]])
    """

    repetition: float | torch.Tensor | None = None
    frequency: float | torch.Tensor | None = None
    presence: float | torch.Tensor | None = None
    ids: torch.Tensor | None = None
    counts: torch.Tensor | None = None
    prompt_bits: torch.Tensor | None = None
    row: torch.Tensor | None = None
    drafted: torch.Tensor | None = None


def history(
    prompt: Sequence[Sequence[int]], output: Sequence[Sequence[int]], size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the lists that ``Penalties`` reads, ids and counts [S, size] int32 on the CPU.

    Args:
        prompt: the tokens of each of S prompts.
        output: the tokens that each request has emitted.
        size: the largest number of distinct tokens of a request.

    Raises:
        ValueError: prompt and output have different numbers of requests, a token is negative or too large, or a
            request has more than ``size`` distinct tokens.

    Example:
        >>> history([[3]], [[0, 0, 2]], size=4)
        (tensor([[ 0,  2,  3, -1]], dtype=torch.int32), tensor([[2, 1, 0, 0]], dtype=torch.int32))
    """
    if len(prompt) != len(output):
        raise ValueError(f"history: output must be of {len(prompt)} requests, as prompt is, got {len(output)}")
    ids = torch.full((len(prompt), size), -1, dtype=torch.int32, device="cpu")
    counts = torch.zeros((len(prompt), size), dtype=torch.int32, device="cpu")
    for b, (before, after) in enumerate(zip(prompt, output)):
        count = Counter(map(int, after))
        listed = sorted({*map(int, before), *count})
        if listed and not (0 <= listed[0] and listed[-1] < 1 << 24):
            wrong = listed[0] if listed[0] < 0 else listed[-1]
            raise ValueError(f"history: tokens must be in [0, 2^24), got {wrong} in request {b}")
        if len(listed) > size:
            raise ValueError(f"history: size must be at least {len(listed)}, request {b}'s distinct tokens, got {size}")
        ids[b, : len(listed)] = torch.tensor(listed, dtype=torch.int32, device="cpu")
        counts[b, : len(listed)] = torch.tensor([count[v] for v in listed], dtype=torch.int32, device="cpu")
    return ids, counts
