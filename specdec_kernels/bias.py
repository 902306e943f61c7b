# SPDX-License-Identifier: Apache-2.0
"""Values that are added to some logits of a row."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Bias(NamedTuple):
    """Values that are added to some logits of a row, for ``Rows(..., bias=...)``.

    The op adds them in float32 as it reads the row, before penalties, temperature and filters. The logits in memory are
    not changed. Minus infinity forbids an id, so one list can hold a request's ``logit_bias``, its ``bad_words`` and
    the end tokens that ``min_tokens`` forbids. The result is the same as for a row of the changed logits, so
    ``verify_chain`` and ``verify_tree`` stay exact. If an id occurs twice in a list, both values are added, in the
    order of the list.

    The exact rule rejects a forbidden draft. The cascade rules, ``ensemble`` and ``synthetic`` may accept it, as they
    may accept any token with p = 0. With these rules, draw the drafts with the same bias.

    Args:
        ids: [S, I] int32 or int64, in any order; -1 pads. An id of V or more changes nothing. An id below -1 raises on
            the CPU, and changes nothing on a GPU.
        values: [S, I] float32, finite or minus infinity, contiguous in its last dimension; values at pads are ignored.
            NaN and +inf raise on the CPU. On a GPU they act as in a logit: a row with that id is invalid.
        row: int32 or int64, the index of each row's list; -1: no biases. In verification it has an entry for each
            request, [B], or for each position: [B, G+1] for chains, [R] for ragged chains, [B, N] for trees. None: list
            n belongs to row n, or in verification to request n if S = B. Without ``row``, ids and values of shape
            [B, G+1, I] (ragged [R, I]; trees [B, N, I]) are lists of the positions. An index outside [-1, S) raises on
            the CPU, and makes the row invalid on a GPU.

    On the draft's side ``row`` has the same shape as on the target's, with an entry for each position. Draft i of a
    chain was drawn at position i, and a node of a tree at the position of its parent.

    Cost: once per call, the CPU sorts each list that is used. The CUDA kernels do about I^2 / 256 operations per
    thread for each row, and Triton scans the list for every 1,024 ids of a row. Hundreds of ids are cheap, thousands
    are not; to forbid thousands, use ``Allowed``.

    Example:
        >>> z = torch.tensor([[2.0, 1.0, 0.5, -0.5, 0.0]])
        >>> bias = Bias(torch.tensor([[0, 4, -1]]), torch.tensor([[-math.inf, 1.5, 0.0]]))
        >>> specdec_kernels.sample(Rows(z, temperature=0.0, bias=bias)).tokens
        tensor([[4]])
    """

    ids: torch.Tensor
    values: torch.Tensor
    row: torch.Tensor | None = None
