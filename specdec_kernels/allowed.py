# SPDX-License-Identifier: Apache-2.0
"""A mask of the ids that may be sampled from a row."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Allowed(NamedTuple):
    """Bit masks of the ids that may be sampled from a row, for ``Rows(..., allowed=...)``.

    The op reads all other logits as minus infinity, after bias and penalties and before temperature and filters; the
    logits in memory stay as they are. Use it for grammars, allow-lists and forced tokens. The output is what plain
    decoding under the same masks gives.

    The exact rule rejects a forbidden draft. The cascade rules, ``ensemble`` and ``synthetic`` may accept it, as they
    may accept any token with p = 0: under these, draw the drafts under the same mask.

    A NaN at a forbidden id does no harm. A row with nothing allowed is invalid, like a row of minus infinities: its
    status says so, and the token emitted is 0, allowed or not. A request without a grammar has ``row`` -1 instead.

    The CPU does not read a chunk of 1,024 entries in which no id is allowed. The CUDA kernels load allowed entries
    alone, and Triton loads all entries.

    A padded vocabulary needs no mask: ``logits[..., :size]`` are rows as well.

    Args:
        bits: [S, W] int32 on the device of the logits, contiguous in its last dimension, in the layout of xgrammar,
            llguidance and ``support``: id v is allowed if bit v % 32 of word v // 32 is set. Ids beyond the last word
            are forbidden; bits beyond the vocabulary are ignored.
        row: int32 or int64, the index of each row's mask, -1 for none: everything is allowed. In verification: of each
            request's mask ([B]) or of each position's (chains [B, G+1], ragged [R]; trees [B, N]). None: mask n is row
            n's. In verification it is then request n's if S = B. Bits of shape [B, G+1, W] (ragged [R, W]; trees
            [B, N, W]) are a mask for each position. ``row`` has the same shape on both sides, as in ``Bias``. An index
            outside [-1, S) raises on the CPU, and makes the row invalid on a GPU.

    Example:
        >>> z = torch.tensor([[2.0, 1.0, 0.5, -0.5, 0.0]])
        >>> allowed = Allowed(torch.tensor([[0b10110]], dtype=torch.int32))
        >>> specdec_kernels.sample(Rows(z, temperature=0.0, allowed=allowed)).tokens
        tensor([[1]])
    """

    bits: torch.Tensor
    row: torch.Tensor | None = None
