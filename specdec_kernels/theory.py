# SPDX-License-Identifier: Apache-2.0
"""What speculative decoding can gain: Leviathan, Kalman, Matias 2023 ("Fast Inference from Transformers via Speculative Decoding").

alpha is the mean acceptance rate, gamma the number of drafted tokens, c the cost of one draft step over one target step.
The formulas take acceptances as independent with one rate alpha (section 3.1 of the paper).
"""

import math

import torch

__all__ = [
    "acceptance_rate",
    "acceptance_rate_from_logits",
    "best_gamma",
    "expected_tokens",
    "improves",
    "operations_factor",
    "walltime_factor",
]


def _check(op, **values):
    for name, value in values.items():
        if name == "alpha" and not 0 <= value <= 1:
            raise ValueError(f"{op}: alpha must lie in [0, 1], got {value}")
        if name in ("c", "c_hat") and not 0 <= value < math.inf:
            raise ValueError(f"{op}: {name} must be a finite number >= 0, got {value}")
        if name in ("gamma", "max_gamma") and (value != int(value) or value < 0):
            raise ValueError(f"{op}: {name} must be an integer >= 0, got {value}")


def expected_tokens(alpha: float, gamma: int) -> float:
    """Expected tokens of one target call: (1 - alpha^(gamma+1)) / (1 - alpha), Eq. (1); gamma + 1 at alpha = 1.

    Summed as 1 + alpha + ... + alpha^gamma, which needs no special case near alpha = 1.

    >>> round(expected_tokens(0.8, 5), 5)
    3.68928
    """
    _check("expected_tokens", alpha=alpha, gamma=gamma)
    return math.fsum(alpha**i for i in range(int(gamma) + 1))


def walltime_factor(alpha: float, gamma: int, c: float) -> float:
    """Expected speed-up over plain decoding: expected_tokens / (gamma * c + 1), Theorem 3.8.

    It supposes that the target scores gamma + 1 positions in the time of one.

    >>> round(walltime_factor(0.8, 5, 0.05), 6)
    2.951424
    """
    _check("walltime_factor", alpha=alpha, gamma=gamma, c=c)
    return expected_tokens(alpha, gamma) / (gamma * c + 1)


def operations_factor(alpha: float, gamma: int, c_hat: float) -> float:
    """How many times the arithmetic operations per token grow: (gamma * c_hat + gamma + 1) / expected_tokens, Theorem 3.11.

    c_hat is the draft's operations per token over the target's.

    >>> round(operations_factor(0.8, 5, 0.05), 6)
    1.694097
    """
    _check("operations_factor", alpha=alpha, gamma=gamma, c_hat=c_hat)
    return (gamma * c_hat + gamma + 1) / expected_tokens(alpha, gamma)


def improves(alpha: float, c: float) -> bool:
    """Whether some gamma beats plain decoding: alpha > c, and then gamma = 1 gains (1 + alpha) / (1 + c) at least (Corollary 3.9)."""
    _check("improves", alpha=alpha, c=c)
    return alpha > c


def best_gamma(alpha: float, c: float, max_gamma: int = 64) -> int:
    """The gamma in 0..max_gamma with the largest walltime factor (section 3.5); 0 means: do not draft. Ties: the smaller.

    The factor rises to one peak and falls, so the search stops at the first gamma that does not rise. With c = 0 (or
    alpha = 1 > c) it never stops rising, and max_gamma is the answer.

    >>> best_gamma(0.8, 0.05), best_gamma(0.5, 0.2), best_gamma(0.1, 0.2)
    (8, 1, 0)
    """
    _check("best_gamma", alpha=alpha, c=c, max_gamma=max_gamma)
    best, tokens, power = 0, 1.0, 1.0
    for gamma in range(1, int(max_gamma) + 1):
        power *= alpha
        # One more draft pays iff its token's chance, alpha^gamma, exceeds the price of a draft step at the present rate.
        if not power * ((gamma - 1) * c + 1) > c * tokens:
            break
        best, tokens = gamma, tokens + power
    return best


def acceptance_rate(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """beta = sum_x min(p(x), q(x)) of each row, in float64: the chance that a draft from q is accepted (Theorem 3.5).

    p: [..., V] target probabilities. q: [..., Vq] draft probabilities (ids missing on one side have probability 0
    there), or integer ids [...] of one-hot drafts. Its mean over positions estimates alpha (Corollary 3.6).

    >>> acceptance_rate(torch.tensor([.5, .3, .2]), torch.tensor([.2, .5, .3])).item()   # doctest: +ELLIPSIS
    0.7...
    """
    if not p.is_floating_point():
        raise TypeError(f"acceptance_rate: p must be a floating-point tensor, got {p.dtype}")
    if not q.is_floating_point():
        if q.shape != p.shape[:-1]:
            raise ValueError(f"acceptance_rate: q (draft ids) must have shape {list(p.shape[:-1])}, got {list(q.shape)}")
        inside = (q >= 0) & (q < p.shape[-1])
        chosen = p.gather(-1, q.clamp(0, p.shape[-1] - 1).long().unsqueeze(-1)).squeeze(-1)
        return torch.where(inside, chosen.double(), 0.0)
    if p.shape[:-1] != q.shape[:-1]:
        raise ValueError(f"acceptance_rate: q must have leading shape {list(p.shape[:-1])}, got {list(q.shape[:-1])}")
    n = min(p.shape[-1], q.shape[-1])
    return torch.minimum(p[..., :n].double(), q[..., :n].double()).sum(-1)


def acceptance_rate_from_logits(target_logits, draft_logits, target_stats=None, draft_stats=None) -> torch.Tensor:
    """acceptance_rate of the laws that [N, V] target and [N, Vq] draft logits stand for, row by row in float64 -> [N].

    target_stats, draft_stats: [N, 4] as row_stats returns them (temperature and filters); None: temperature 1, no filter.
    A row that is no law (NaN, +inf or nothing finite) gives NaN.
    """
    from .reference.law import law_of_logits, numpy_rows
    from .reference.row_stats import row_stats

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
            law = law_of_logits(numpy_rows(z)[0], (row_stats(z) if stats is None else stats[i : i + 1].double().cpu())[0].tolist())
            yield torch.from_numpy(law.p if law.valid else law.p + math.nan)

    pairs = zip(rows(target_logits, target_stats), rows(draft_logits, draft_stats))
    return torch.tensor([acceptance_rate(p, q).item() for p, q in pairs], dtype=torch.float64)
