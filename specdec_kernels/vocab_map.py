# SPDX-License-Identifier: Apache-2.0
"""Maps from a draft model's vocabulary to the target's."""

from __future__ import annotations

from typing import NamedTuple

import torch

from specdec_kernels.ops import _check
from specdec_kernels.registry import MAX_VOCABULARY


class VocabMap(NamedTuple):
    """A map from a draft's vocabulary to the target's, for ``Rows(..., vocab_map=...)``; ``vocab_map`` makes it.

    It can be used for any number of calls, eager or in a CUDA graph. To move it to another device, move ``packed``:
    ``made._replace(packed=made.packed.to(device))``.

    Args:
        packed: [3 Vd + V + 1] int32: Vd pairs (target id, draft id), sorted, with the unmapped draft ids at the end as
            (-1, draft id); then the target id of each draft id, -1 where there is none; then, for each v from 0 to V,
            how many pairs have a target id in [0, v).
        vocab: V, the size of the target's vocabulary.
    """

    packed: torch.Tensor
    vocab: int

    @property
    def table(self) -> torch.Tensor:
        """The target id of each draft id, [Vd] int32; -1: none."""
        size = (self.packed.size(0) - self.vocab - 1) // 3
        return self.packed[2 * size : 3 * size]

    def target_ids(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the target id of each draft id, int32; -1 for ids that are unmapped or outside the table."""
        table = self.table
        inside = (ids >= 0) & (ids < table.size(0))
        return torch.where(inside, table[torch.where(inside, ids, 0).long()], -1)


def vocab_map(table: torch.Tensor, V: int, offsets: bool = False) -> VocabMap:
    """Make the map from draft ids to target ids for ``Rows.vocab_map``. Call it once per draft model.

    A draft row's entry j then stands for the target id table[j]. A draft id without a target id has no mass. If several
    draft ids have the same target id, their probabilities are added.

    Args:
        table: [Vd] int32 or int64, on the CPU or a GPU: the target id of each draft id, negative where there is none.
        V: the size of the target's vocabulary, at most 2^24.
        offsets: True if ``table`` holds target id - draft id, as ``d2t`` of EAGLE-3 and TensorRT-LLM does. A draft id
            whose target id would be negative has none.

    Returns:
        VocabMap on the device of ``table``. The call waits for that device, because it checks the ids.

    Raises:
        TypeError, ValueError: naming the argument, what was wanted and what came. For a target id of V or more the
            error also names its index.

    Example:
        >>> made = vocab_map(torch.tensor([4, -1, 0, 2, 2]), V=5)
        >>> made.table
        tensor([ 4, -1,  0,  2,  2], dtype=torch.int32)
        >>> vocab_map(torch.tensor([0, 1, 3]), V=8, offsets=True).table
        tensor([0, 2, 5], dtype=torch.int32)

    Source: draft vocabularies as in FR-Spec (Zhao et al. 2025, arXiv 2502.14856) and EAGLE-3 (Li et al. 2025, arXiv
    2503.01840).
    """
    op = "vocab_map"
    _check.integers(op, "table", table)
    V = _check.integer(op, "V", V, 1, MAX_VOCABULARY, "in [1, 2^24]")
    offsets = _check.flag(op, "offsets", offsets)
    if table.dim() != 1 or not 0 < len(table) <= MAX_VOCABULARY:
        raise ValueError(f"{op}: table must have shape [Vd] with Vd in [1, 2^24], got {list(table.shape)}")
    given = table = table.detach().long()
    draft = torch.arange(len(table), dtype=torch.int64, device=table.device)
    if offsets:
        table = torch.where(given < V, given + draft, V)  # large entries are not added to: no overflow
    wrong = table >= V
    if wrong.any():
        at = int(wrong.nonzero()[0, 0])
        what = f"{at} + offset below V={V}" if offsets else f"below V={V}"
        raise ValueError(f"{op}: table[{at}] must be an id {what}, got {given[at]}")
    key = torch.where(table < 0, V, table)
    order = torch.sort(key, stable=True).indices
    table = torch.where(table < 0, -1, table)
    first = torch.searchsorted(key[order], torch.arange(V + 1, dtype=torch.int64, device=table.device))
    pairs = torch.stack((table[order], order), 1).flatten()
    return VocabMap(torch.cat((pairs, table, first)).to(torch.int32), V)
