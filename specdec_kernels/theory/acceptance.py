# SPDX-License-Identifier: Apache-2.0
"""The chance that a draft is accepted, of two rows (Leviathan et al. 2023, Theorem 3.5)."""

import math

import torch

__all__ = ["acceptance_rate", "acceptance_rate_from_logits"]


def acceptance_rate(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """The chance that a draft from q is accepted. Its mean over positions estimates alpha (Corollary 3.6).

    Args:
        p: [..., V] target probabilities.
        q: [..., Vq] draft probabilities (ids missing on one side have probability 0 there), or integer ids [...] of
            one-hot drafts.

    Returns:
        beta = sum_x min(p(x), q(x)) of each row, [...] float64.

    Raises:
        TypeError, ValueError: p is no floating-point tensor, or the leading shapes differ.

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


def acceptance_rate_from_logits(target_logits, draft_logits, target_stats=None, draft_stats=None) -> torch.Tensor:
    """acceptance_rate of the distributions that rows of logits stand for.

    Args:
        target_logits, draft_logits: [N, V] and [N, Vq].
        target_stats, draft_stats: [N, 4] as row_stats returns them (temperature and filters); None: temperature 1, no
            filter.

    Returns:
        [N] float64; NaN for a row that is no distribution (NaN, +inf or nothing finite).

    Raises:
        ValueError: a tensor of another shape.

    Example:
        >>> p, q = torch.tensor([[.5, .3, .2]]), torch.tensor([[.2, .5, .3]])
        >>> round(acceptance_rate_from_logits(p.log(), q.log()).item(), 6)
        0.7

    Source:
        Leviathan et al. 2023, Theorem 3.5.
    """
    from ..reference.law import law_of_logits, numpy_rows
    from ..reference.row_stats import row_stats

    op = "acceptance_rate_from_logits"
    if target_logits.dim() != 2:
        raise ValueError(f"{op}: target_logits must have shape [N, V], got {list(target_logits.shape)}")
    n = len(target_logits)
    if draft_logits.dim() != 2 or len(draft_logits) != n:
        raise ValueError(f"{op}: draft_logits must have shape [N={n}, Vq], got {list(draft_logits.shape)}")
    for name, stats in (("target_stats", target_stats), ("draft_stats", draft_stats)):
        if stats is not None and list(stats.shape) != [n, 4]:
            raise ValueError(f"{op}: {name} must have shape [N={n}, 4], got {list(stats.shape)}")

    def rows(logits, stats):
        for i in range(n):
            z = logits[i : i + 1].cpu()
            law = law_of_logits(
                numpy_rows(z)[0], (row_stats(z) if stats is None else stats[i : i + 1].double().cpu())[0].tolist()
            )
            yield torch.from_numpy(law.p if law.valid else law.p + math.nan)

    pairs = zip(rows(target_logits, target_stats), rows(draft_logits, draft_stats))
    return torch.tensor([acceptance_rate(p, q).item() for p, q in pairs], dtype=torch.float64, device="cpu")
