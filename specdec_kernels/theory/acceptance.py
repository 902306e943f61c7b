# SPDX-License-Identifier: Apache-2.0
"""Acceptance probability of a draft, computed from two rows (Leviathan et al. 2023, Theorem 3.5)."""

import math
from collections.abc import Iterator

import torch
from torch.utils._pytree import tree_map_only

from ..ops import _check, _rows
from ..rows import Rows
from .rows import float64_rows

__all__ = ["acceptance_rate", "acceptance_rate_from_logits", "race_acceptance"]


def acceptance_rate(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Return the probability that a draft from q is accepted. Its mean over positions estimates alpha (Corollary 3.6).

    Args:
        p: [..., V] target probabilities.
        q: [..., Vq] draft probabilities (ids missing on one side have probability 0 there), or integer ids [...] of
            one-hot drafts.

    Returns:
        beta = sum_x min(p(x), q(x)) of each row, [...] float64.

    Raises:
        TypeError, ValueError: p is not a floating-point tensor, or the leading shapes differ.

    Example:
        >>> acceptance_rate(torch.tensor([.5, .3, .2]), torch.tensor([.2, .5, .3])).item()   # doctest: +ELLIPSIS
        0.7...

    Source:
        Leviathan et al. 2023, Theorem 3.5.
    """
    if not p.is_floating_point():
        raise TypeError(f"acceptance_rate: p must be a floating-point tensor, got {p.dtype}")
    if not q.is_floating_point():
        if q.shape != p.shape[:-1]:
            raise ValueError(
                f"acceptance_rate: q (draft ids) must have shape {list(p.shape[:-1])}, got {list(q.shape)}"
            )
        inside = (q >= 0) & (q < p.shape[-1])
        chosen = p.gather(-1, q.clamp(0, p.shape[-1] - 1).long().unsqueeze(-1)).squeeze(-1)
        return torch.where(inside, chosen.double(), 0.0)
    if p.shape[:-1] != q.shape[:-1]:
        raise ValueError(f"acceptance_rate: q must have leading shape {list(p.shape[:-1])}, got {list(q.shape[:-1])}")
    n = min(p.shape[-1], q.shape[-1])
    return torch.minimum(p[..., :n].double(), q[..., :n].double()).sum(-1)


def acceptance_rate_from_logits(target: Rows | torch.Tensor, draft: Rows | torch.Tensor) -> torch.Tensor:
    """Return acceptance_rate of rows of logits, with the sampling parameters of each row.

    Args:
        target, draft: [N, V] and [N, Vq]: ``Rows`` with sampling parameters or stats, or plain tensors (temperature 1,
            no filter).

    Returns:
        [N] float64; NaN if either row is not a distribution: it has NaN or +inf, or nothing finite.

    Raises:
        TypeError, ValueError: the text names the argument, what was wanted and what came.

    Example:
        >>> p, q = torch.tensor([[.5, .3, .2]]), torch.tensor([[.2, .5, .3]])
        >>> round(acceptance_rate_from_logits(p.log(), q.log()).item(), 6)
        0.7

    Source:
        Leviathan et al. 2023, Theorem 3.5.
    """
    op = "acceptance_rate_from_logits"
    p, q = (_stats(op, name, rows) for name, rows in (("target", target), ("draft", draft)))
    if len(q) != len(p):
        shape = list(_rows.of(op, "draft", draft).logits.shape)
        raise ValueError(f"{op}: draft.logits must have shape [N={len(p)}, Vq], got {shape}")
    pairs = zip(_distributions(_rows.of(op, "target", target)), _distributions(_rows.of(op, "draft", draft)))
    return torch.tensor([acceptance_rate(p, q).item() for p, q in pairs], dtype=torch.float64, device="cpu")


def race_acceptance(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Return the probability that a race on q and the race on p have the same winner, which accepts the draft.

    The draft is drawn by ``sample(race=True)`` and verified by the method "race", with the same noise. With several
    drafts the acceptance probability is at least as large.

    Args:
        p, q: [..., V] and [..., Vq] probabilities.

    Returns:
        sum_i 1 / sum_j max(p_j / p_i, q_j / q_i) of each row, [...] float64. It lies between (1 - TV) / (1 + TV) and
        1 - TV, which is ``acceptance_rate``.

    Raises:
        TypeError, ValueError: rows that are not floating-point, leading shapes that differ.

    Example:
        >>> round(race_acceptance(torch.tensor([.5, .3, .2]).double(), torch.tensor([.2, .5, .3]).double()).item(), 6)
        0.693548

    Source:
        Daliri et al. 2024 (Gumbel coupling).
    """
    p, q = float64_rows("race_acceptance", p, q, 1)
    order = torch.where(q > 0, p / q, torch.where(p > 0, math.inf, 0.0)).argsort(-1, descending=True)
    p, q = p.gather(-1, order), q.gather(-1, order)
    after = q.flip(-1).cumsum(-1).flip(-1) - q  # q's mass on the tokens that come later in this order
    return torch.where((p > 0) & (q > 0), 1 / (p.cumsum(-1) / p + after / q), 0.0).sum(-1)


def _stats(op, name, rows) -> torch.Tensor:
    """Return the stats of one side's rows, checked."""
    logits, sampling, stats, _, views = _rows.of_logits(op, name, rows)
    if views:
        _rows.refuse(op, name, rows, *_rows.VIEWS)
    stats = _rows.stats_of(op, name, logits, sampling, stats)
    _check.shape(op, f"{name}.stats", stats, N=len(logits), **{"4": 4})
    return stats


def _distributions(rows: Rows) -> Iterator[torch.Tensor]:
    """Yield each row's probabilities [V] in float64; NaN if the row is not a distribution."""
    from ..reference.law import law_of_logits, numpy_rows
    from ..reference.row_stats import stats_of

    rows = tree_map_only(torch.Tensor, torch.Tensor.cpu, rows)
    for z, stats in zip(numpy_rows(rows.logits), stats_of(rows).tolist()):
        law = law_of_logits(z, stats)
        yield torch.from_numpy(law.p if law.valid else law.p + math.nan)
