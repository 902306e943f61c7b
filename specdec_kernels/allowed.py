# SPDX-License-Identifier: Apache-2.0
"""Masks of the ids that may be sampled from a row."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Allowed(NamedTuple):
    """Bit masks of the ids that may be sampled from a row, for ``Rows(..., allowed=...)``.

    The op reads all other logits as minus infinity, after bias and penalties and before temperature and filters. The
    logits in memory are not changed. Use masks for grammars, allow-lists and forced tokens. The output is distributed
    as in plain decoding under the same masks.

    The exact rule rejects a forbidden draft. The cascade rules, ``ensemble`` and ``synthetic`` may accept it, as they
    may accept any token with p = 0. With these rules, draw the drafts under the same mask.

    A NaN at a forbidden id is ignored. A row in which no id is allowed is invalid, like a row of minus infinities:
    verification sets STATUS_INVALID_ROW and emits token 0, even if 0 is forbidden. For a request without a mask, set
    ``row`` to -1.

    The CPU skips chunks of 1,024 entries in which no id is allowed. The CUDA kernels load only allowed entries, and
    Triton loads all entries.

    To leave out the padding of a vocabulary, pass ``logits[..., :size]``. No mask is needed.

    Args:
        bits: [S, W] int32 on the device of the logits, contiguous in its last dimension, in the layout of xgrammar,
            llguidance and ``support``: id v is allowed if bit v % 32 of word v // 32 is set. Ids beyond the last word
            are forbidden; bits beyond the vocabulary are ignored.
        row: int32 or int64, the index of each row's mask; -1: everything is allowed. In verification it has an entry
            for each request, [B], or for each position: [B, G+1] for chains, [R] for ragged chains, [B, N] for trees.
            None: mask n belongs to row n, or in verification to request n if S = B. Without ``row``, bits [B, G+1, W]
            (ragged [R, W]; trees [B, N, W]) are masks of the positions. On the draft's side ``row`` has the same shape
            as on the target's; see ``Bias``. An index outside [-1, S) raises on the CPU, and makes the row invalid on
            a GPU.

    Example:
        >>> z = torch.tensor([[2.0, 1.0, 0.5, -0.5, 0.0]])
        >>> allowed = Allowed(torch.tensor([[0b10110]], dtype=torch.int32))
        >>> specdec_kernels.sample(Rows(z, temperature=0.0, allowed=allowed)).tokens
        tensor([[1]])
    """

    bits: torch.Tensor
    row: torch.Tensor | None = None
