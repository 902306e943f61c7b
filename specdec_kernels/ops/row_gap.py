# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import torch

from specdec_kernels.ops import _call, _pair
from specdec_kernels.ops._fake import fake
from specdec_kernels.rows import Rows

_row_gap = _call.op("row_gap")


def row_gap(p: Rows | torch.Tensor, q: Rows | torch.Tensor) -> torch.Tensor:
    """Return the distance of each draft row from its target row, for adaptive draft lengths, monitors and cascades.

    The CPU reads each dense row of logits once, a GPU three times, and both once more if stats are not given.

    Args:
        p: [N, V] target rows, ``Rows`` or a tensor. Logits: with their stats [N, 4], or with sampling parameters, each
            a number or [N]. Probabilities: a negative one, also -inf, counts as 0.
        q: [N, Vq] draft rows of the same kind. An id without an entry has no mass. A probability outside [0, 1 + 1e-3]
            counts as 0. Sparse rows: ``ids`` [N, E] with entries [N, E]. Mapped rows: ``vocab_map``.

    Returns:
        [N, 6] float32: TV = sum (p - q)+, the overlap sum min(p, q) (the probability that a draft is accepted), the
        entropies H(p) and H(q) in nats, max p and max q. For logits, p and q are the distributions after temperature
        and filters. Values that depend on an invalid row (NaN, inf, no mass) are NaN.

    Raises:
        TypeError, ValueError: naming the argument, what was wanted and what came.

    Example:
        >>> p, q = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.2, 0.5, 0.3]])
        >>> [round(x, 4) for x in row_gap(Rows(p, kind="probs"), Rows(q, kind="probs"))[0].tolist()]
        [0.3, 0.7, 1.0297, 1.0297, 0.5, 0.5]

    Source: Narasimhan et al. 2024 (confidences, TV); Leviathan et al. 2023, section 3 (the overlap).
    """
    *sides, ids = _pair.sides("row_gap", p, q)
    return _row_gap(*sides, *ids)


@fake("row_gap")
def _(p):
    return p.new_empty((p.size(0), 6), dtype=torch.float32)
