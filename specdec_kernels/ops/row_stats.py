# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import torch

from specdec_kernels.ops import _check


def row_stats(
    logits: torch.Tensor,
    temperature: float | torch.Tensor | None = None,
    top_k: int | torch.Tensor | None = None,
    top_p: float | torch.Tensor | None = None,
    min_p: float | torch.Tensor | None = None,
    *,
    num_rows: torch.Tensor | None = None,
) -> torch.Tensor:
    """The four floats that turn a row of logits into a distribution.

    A law is never materialised. It is the row where the model wrote it, plus ``(scale, cutoff, log_norm, max)``::

        p(v) = exp((z_v - max) * scale - log_norm)   if z_v >= cutoff,   else 0

    Filters apply in the order temperature, min-p, top-k, then top-p over what is left, each exactly and without
    sorting the vocabulary. All of them are "keep the logits from some value up", so ties at the cutoff all stay.

    Args:
        logits: [N, V] float32, bfloat16 or float16. Rows may have any stride; entries of a row must be neighbours.
        temperature: T > 0, or 0 for greedy; a subnormal T, below 2^-126, counts as 0. None, a number, or [N] float32.
        top_k: keep the k largest; 0 or -1 is off. None, an int, or [N] int32 / int64. Numbers may be numpy's.
        top_p: keep the smallest set of largest probabilities whose sum reaches top_p, in (0, 1]; 1 is off.
        min_p: keep p(v) >= min_p * max p, in [0, 1]; 0 is off.
        num_rows: [1] int32 or int64 on the device, of padded buffers: rows from it on are absent, and nothing of them
            is read. Below 0 it counts as 0, above N as N. None: all rows are there.

    Returns:
        [N, 4] float32: ``scale`` = 1/T; ``cutoff``, the smallest logit kept; ``log_norm`` = ln sum over the kept of
        exp((z - max) * scale), which lies in [0, ln V]; ``max``, the largest logit. The usual log-sum-exp is
        ``max * scale + log_norm``; relative to the maximum it costs no precision at low temperatures.
        A greedy row has scale = inf and its argmax (the lowest id on ties) in place of log_norm. A row with NaN, +inf
        or no finite entry has log_norm = NaN, one that is absent four zeros. In sums over a row a logit that weighs
        less than 2^-126 of the largest one weighs nothing. -0 and +0 are one logit: as cutoff or max a zero is +0.

    Raises:
        TypeError, ValueError: naming the argument, what was wanted and what came. RuntimeError: under torch.func's
        transforms and forward-mode AD (no op is differentiable), or where the result has no room. On CPU tensors a
        parameter value out of range raises RuntimeError; on a GPU it makes the row invalid.

    Example:
        >>> z = torch.tensor([[5.0, 3.0, 2.0]]).log()
        >>> scale, cutoff, log_norm, top = row_stats(z, temperature=0.5)[0]
        >>> torch.exp((z - top) * scale - log_norm)
        tensor([[0.6579, 0.2368, 0.1053]])

    Source: standardised sampling, Leviathan et al. 2023, section 2.2.
    """
    op = "row_stats"
    _check.rows(op, "logits", logits, "N, V")
    n, device = logits.shape[0], logits.device
    tensors, numbers = _check.sampling(op, "", (temperature, top_k, top_p, min_p), n, device)
    if num_rows is not None:
        _check.present(op, "num_rows", num_rows, device)
    return torch.ops.specdec.row_stats.default(logits, *tensors, num_rows, numbers)


@torch.library.register_fake("specdec::row_stats")
def _(logits, *rest):
    return logits.new_empty((logits.size(0), 4), dtype=torch.float32)
