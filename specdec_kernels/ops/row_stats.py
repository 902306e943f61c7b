# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import torch

from specdec_kernels.ops import _rows
from specdec_kernels.ops._fake import fake
from specdec_kernels.rows import Rows


def row_stats(rows: Rows | torch.Tensor, *, num_rows: torch.Tensor | None = None) -> torch.Tensor:
    """Return the four floats that turn a row of logits into a distribution.

    No distribution is stored. The row stays where the model wrote it, and ``(scale, cutoff, log_norm, max)`` define p::

        p(v) = exp((z_v - max) * scale - log_norm)   if z_v >= cutoff,   else 0

    Args:
        rows: [N, V], ``Rows`` of logits with sampling parameters, each a number or [N], without ``stats`` and ``row``;
            or a tensor: the rows as they are (T = 1, no filters). Penalties: [N] or numbers, lists [S, H] with
            ``penalties.row`` [N], ``penalties.drafted`` [N, n]. Bias: lists [S, I] with ``bias.row`` [N]. Masks: [S, W]
            with ``allowed.row`` [N]. Sparse draft rows: ``ids`` [N, E] with logits [N, E]. Mapped draft rows:
            ``vocab_map``.
        num_rows: [1] int32 or int64 on the device, for padded buffers: rows from this index on are absent and not
            read. Below 0 it counts as 0, above N as N. None: all rows are present.

    Returns:
        [N, 4] float32: ``scale`` = 1/T; ``cutoff``, the smallest logit kept; ``log_norm`` = ln of the sum of
        exp((z - max) * scale) over the kept logits z, in [0, ln V]; ``max``, the largest logit. The usual log-sum-exp
        is ``max * scale + log_norm``. log_norm leaves out ``max * scale`` to keep precision at low temperatures.
        A greedy row has scale = inf and its argmax (the lowest id on ties) in place of log_norm. A row with NaN, +inf
        or no finite entry has log_norm = NaN. An absent row has four zeros. In sums, a logit with less than 2^-126 of
        the weight of the largest one counts as 0. -0 and +0 are equal, and a cutoff or max of zero is +0.
        Stats of sparse and mapped rows are made from their entries one by one. Entries with the same id are not added,
        and entries without an id are ignored. A greedy one has the target id of its largest entry, the first on ties.

    Raises:
        TypeError, ValueError: naming the argument, what was wanted and what came. NotImplementedError: under
        torch.func's transforms and forward-mode AD (no op is differentiable). RuntimeError: no memory for the
        result. On CPU tensors a parameter value out of range raises; on a GPU it makes the row invalid.

    Example:
        >>> z = torch.tensor([[5.0, 3.0, 2.0]]).log()
        >>> scale, cutoff, log_norm, top = row_stats(Rows(z, temperature=0.5))[0]
        >>> torch.exp((z - top) * scale - log_norm)
        tensor([[0.6579, 0.2368, 0.1053]])

    Source: standardised sampling, Leviathan et al. 2023, section 2.2.
    """
    logits, sampling, _, _, views = _rows.of_logits("row_stats", "rows", rows, stats=False, takes_ids=True)
    return _rows.row_stats(logits, *sampling, num_rows, *views)


@fake("row_stats")
def _(logits):
    return logits.new_empty((logits.size(0), 4), dtype=torch.float32)
