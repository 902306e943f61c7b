# SPDX-License-Identifier: Apache-2.0
"""A bias on some ids of a row."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Bias(NamedTuple):
    """Numbers that are added to some logits of a row, for ``Rows(..., bias=...)``.

    The op adds them as it reads the row, in float32, before penalties, temperature and filters; no row is written out.
    Minus infinity forbids an id, so bad words, fewest tokens and a bias that a user asks for are all such lists. The
    output is as if the row had these logits: ``verify_chain`` and ``verify_tree`` stay exact. An id that occurs twice
    in a list gets both numbers, in the order of the list.

    Args:
        ids: [S, I] int32 or int64, in any order; -1 pads. An id outside the vocabulary changes nothing.
        values: [S, I] float32, finite or minus infinity; what stands at a pad is not used. NaN and +inf raise on the
            CPU. On a GPU they make the rows invalid whose entry they change, as if these held them.
        row: int32 or int64, the number of each row's list, -1 for none; in verification of each request's ([B]) or of
            each position's (chains [B, G+1], ragged [R]; trees [B, N]). None: the lists are in the order of the rows;
            in verification of the requests (S = B) or of the positions ([B, G+1, I] or [R, I]; [B, N, I]). Both sides
            have the positions of the target's rows: draft i of a chain was drawn at position i, a node at its parent's.
            On a GPU a number outside [-1, S) makes the row invalid.

    On the CPU a list costs a sort in each call, and on CUDA the square of its length over 256 operations: some hundred
    ids are cheap, some thousands are not.

    Example:
        >>> z = torch.tensor([[2.0, 1.0, 0.5, -0.5, 0.0]])
        >>> bias = Bias(torch.tensor([[0, 4, -1]]), torch.tensor([[-math.inf, 1.5, 0.0]]))
        >>> specdec_kernels.sample(Rows(z, temperature=0.0, bias=bias)).tokens
        tensor([[4]])
    """

    ids: torch.Tensor
    values: torch.Tensor
    row: torch.Tensor | None = None
