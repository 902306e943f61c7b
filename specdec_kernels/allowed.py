# SPDX-License-Identifier: Apache-2.0
"""A mask of the ids that a row may have."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Allowed(NamedTuple):
    """Packed bits of the ids that a row may have, for ``Rows(..., allowed=...)``.

    The op reads a row as if every other logit were minus infinity, after bias and penalties and before temperature and
    filters; no row is written out. A grammar, an allow-list and a token that must come next are such masks. A forbidden
    draft is rejected, and the output is what plain decoding under the same masks gives. On the CPU
    a chunk of 1,024 entries is not read if none of them is allowed. A NaN at a forbidden id does no harm. A row with
    nothing allowed is invalid, as one of minus infinities is.

    A vocabulary that is padded needs no mask: ``logits[..., :size]`` are rows as well.

    Args:
        bits: [S, W] int32, the layout of xgrammar, llguidance and ``support``: bit v % 32 of word v // 32 is the bit of
            id v. Ids beyond the words are forbidden; bits beyond the vocabulary are not used.
        row: int32 or int64, the number of each row's mask, -1 for none: everything is allowed. In verification of each
            request's mask ([B]) or of each position's (chains [B, G+1], ragged [R]; trees [B, N]). None: the masks are
            in the order of the rows; in verification of the requests (S = B) or of the positions ([B, G+1, W] or [R,
            W]; [B, N, W]). Both sides have the positions of the target's rows, as in ``Bias``. On a GPU a number
            outside [-1, S) makes the row invalid.

    Example:
        >>> z = torch.tensor([[2.0, 1.0, 0.5, -0.5, 0.0]])
        >>> allowed = Allowed(torch.tensor([[0b10110]], dtype=torch.int32))
        >>> specdec_kernels.sample(Rows(z, temperature=0.0, allowed=allowed)).tokens
        tensor([[1]])
    """

    bits: torch.Tensor
    row: torch.Tensor | None = None
