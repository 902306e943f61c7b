# SPDX-License-Identifier: Apache-2.0
"""Acceptance of several drafts of one position, and of trees (Sun et al. 2023, "SpecTr: Fast Speculative Decoding via
Optimal Transport")."""

import math

import numpy as np
import torch

from .rows import float64_rows

__all__ = ["expected_tree_tokens", "kseq_guarantee", "multi_draft_acceptance", "optimal_acceptance"]


def optimal_acceptance(p: torch.Tensor, q: torch.Tensor, k: int) -> torch.Tensor:
    """Return the largest acceptance probability of any lossless rule, for k drafts drawn i.i.d. from q.

    By max-flow and min-cut, the optimal transport with membership cost is 1 + min_H (p(H) - q(H)^k) over sets H of
    tokens. The best H is a prefix of the tokens sorted by ascending p / q, so this takes O(V log V).

    Args:
        p, q: [..., V] and [..., Vq] probabilities.
        k: drafts, an integer >= 1.

    Returns:
        The probability that one of the drafts is accepted, row by row, [...] float64.

    Raises:
        TypeError, ValueError: rows that are not floating-point, leading shapes that differ, k below 1.

    Example:
        >>> p, q = torch.tensor([.5, .3, .2]).double(), torch.tensor([.2, .5, .3]).double()
        >>> [round(optimal_acceptance(p, q, k).item(), 6) for k in (1, 2, 3)]
        [0.7, 0.86, 0.988]

    Source:
        Sun et al. 2023 (SpecTr).
    """
    p, q = float64_rows("optimal_acceptance", p, q, k)
    order = torch.where(q > 0, p / q, math.inf).argsort(-1)
    P, Q = p.gather(-1, order).cumsum(-1), q.gather(-1, order).cumsum(-1)
    return 1 + (P - Q**k).amin(-1).clamp(max=0)


def kseq_guarantee(k: int) -> float:
    """Return the share of the optimal acceptance that K-SEQ is guaranteed to reach.

    Args:
        k: drafts, an integer >= 1.

    Returns:
        1 - (1 - 1/k)^k, which is above 1 - 1/e.

    Raises:
        ValueError: k below 1.

    Example:
        >>> round(kseq_guarantee(1), 6), round(kseq_guarantee(4), 6), kseq_guarantee(10**6) > 1 - math.exp(-1)
        (1.0, 0.683594, True)

    Source:
        Sun et al. 2023 (SpecTr).
    """
    if k != int(k) or k < 1:
        raise ValueError(f"kseq_guarantee: k must be an integer >= 1, got {k}")
    return 1 - (1 - 1 / k) ** k


def multi_draft_acceptance(
    p: torch.Tensor, q: torch.Tensor, k: int, method: str, draws: int | None = None, seed: int = 0
) -> torch.Tensor:
    """Return the probability that one of k drafts at a node is accepted.

    optimal_acceptance is its upper bound for i.i.d. drafts. Methods:

    - "kseq": i.i.d. drafts, p_acc = 1 - (1 - beta)^k at the best rho.
    - "recursive": i.i.d. drafts. The residual r_j after j rejections does not depend on the tokens, so the result is
      1 - prod_j (1 - sum_x min(q, r_j)), in O(k V).
    - "recursive_without_replacement": k distinct drafts. The ordered sets of k - 1 rejected tokens are enumerated, at
      most V^(k-1). If `draws` is given, that many ordered sets are drawn for each row instead. The mean of their exact
      acceptance probabilities is an unbiased estimate.
    - "target_only": i.i.d. drafts, merged if equal: sum_x p(x) (1 - (1 - q(x))^k).

    Args:
        p, q: [..., V] and [..., Vq] probabilities.
        k: drafts, an integer >= 1.
        method: one of those above.
        draws, seed: the number of drawn sets and their seed, for "recursive_without_replacement".

    Returns:
        [...] float64, row by row.

    Raises:
        TypeError, ValueError: an unknown method, rows that optimal_acceptance refuses, V^(k-1) above 10^6 without
            `draws`, `draws` below 1.

    Example:
        >>> p, q = torch.tensor([.5, .3, .2]).double(), torch.tensor([.2, .5, .3]).double()
        >>> methods = "kseq", "recursive", "recursive_without_replacement", "target_only"
        >>> [round(multi_draft_acceptance(p, q, 2, method).item(), 6) for method in methods]
        [0.791355, 0.76, 0.808571, 0.507]

    Source:
        Sun et al. 2023 (SpecTr); Miao et al. 2023 (SpecInfer); without replacement Chen et al. 2024 (Sequoia).
    """
    op = "multi_draft_acceptance"
    rng = np.random.default_rng(seed)
    rules = {
        "kseq": lambda a, b: _rho(a, b, k)[2],
        "recursive": lambda a, b: _recursive(a, b, k),
        "recursive_without_replacement": lambda a, b: (
            _distinct(a, b, k) if draws is None else np.mean([_drawn(a, b, k, rng) for _ in range(draws)])
        ),
        "target_only": lambda a, b: float((a * (1 - (1 - b) ** k)).sum()),
    }
    if method not in rules:
        raise ValueError(f"{op}: method must be one of {', '.join(map(repr, rules))}, got {method!r}")
    p, q = float64_rows(op, p, q, k)
    if draws is None and method == "recursive_without_replacement" and p.size(-1) ** (k - 1) > 10**6:
        raise ValueError(f"{op}: method {method!r} needs V^(k-1) <= 10^6 or draws, got V={p.size(-1)}, k={k}")
    if draws is not None and draws < 1:
        raise ValueError(f"{op}: draws must be an integer >= 1 or None, got {draws}")
    rows = zip(p.reshape(-1, p.size(-1)).numpy(), q.reshape(-1, p.size(-1)).numpy())
    return torch.tensor([rules[method](a, b) for a, b in rows], dtype=torch.float64, device="cpu").reshape(p.shape[:-1])


def expected_tree_tokens(p, q, K: int, L: int, method: str, drawn: str = "iid") -> float:
    """Return the expected tokens of one target call that verifies K drafts of length L, by enumeration.

    For small V, K and L only.

    Args:
        p, q: p(prefix), q(prefix) -> [V] float64: the distributions after a tuple of tokens.
        K, L: drafts and their length.
        method: a method of verify_tree.
        drawn: "iid": K independent drafts merged by build_tree; "distinct": K children without replacement at every
            node ("kseq" and "recursive" are not lossless there).

    Returns:
        The expected number of tokens, the final one included.

    Raises:
        ValueError: `drawn` is neither of these.

    Example:
        >>> rows = lambda t: [1/3, 2/3], lambda t: [2/3, 1/3]
        >>> [round(expected_tree_tokens(*rows, 1, 2, method), 6) for method in ("recursive", "traversal")]
        [2.111111, 2.222222]

    Source:
        the papers of verify_tree's methods, with the exact distributions of specdec_kernels.reference.tree_law.
    """
    from ..reference.tree_law import distinct_trees, expected_length, iid_trees, mixed

    if drawn not in ("iid", "distinct"):
        raise ValueError(f"expected_tree_tokens: drawn must be 'iid' or 'distinct', got {drawn!r}")
    trees = iid_trees(q, K, L) if drawn == "iid" else distinct_trees(q, [K] * L)
    return float(expected_length(mixed(trees, p, q, method)))


def _rho(p, q, k):
    from ..reference.kseq_rho import best_rho

    return best_rho(p, q, k)


def _recursive(r, q, k):
    rejected = 1.0
    for _ in range(k):
        rest = (r - q).clip(min=0)
        rejected *= max(1 - (r - rest).sum(), 0.0)
        if rejected < 1e-15 or not rest.sum() > 0:
            break
        r = rest / rest.sum()
    return 1 - rejected


def _distinct(r, q, k):
    kept, rest = r.clip(max=q), (r - q).clip(min=0)
    accepted = kept.sum()
    if k > 1 and rest.sum() > 0:
        for x in (q > kept).nonzero()[0]:  # x is drawn and rejected with probability q(x) - min(q(x), r(x))
            left = q.copy()
            left[x] = 0
            if left.sum() > 0:
                accepted += (q[x] - kept[x]) * _distinct(rest / rest.sum(), left / left.sum(), k - 1)
    return accepted


def _drawn(r, q, k, rng):
    """Draw k distinct drafts one after the other, and return the probability that one of them is accepted."""
    rejected = 1.0
    for _ in range(k):
        x = rng.choice(len(q), p=q / q.sum())
        rejected *= 1 - min(1.0, r[x] / q[x])
        rest, left = (r - q).clip(min=0), q.copy()
        left[x] = 0
        if rejected == 0 or not (rest.sum() > 0 and left.sum() > 0):
            break
        r, q = rest / rest.sum(), left / left.sum()
    return 1 - rejected
