# SPDX-License-Identifier: Apache-2.0
"""What speculative decoding can gain: Leviathan, Kalman, Matias 2023 ("Fast Inference from Transformers via Speculative
Decoding"), and with several drafts: Sun et al. 2023 ("SpecTr: Fast Speculative Decoding via Optimal Transport").

alpha is the mean acceptance rate, gamma the number of drafted tokens, c the cost of one draft step over one target
step. The formulas take acceptances as independent with one rate alpha (section 3.1 of the paper).
"""

import math

import numpy as np
import torch

__all__ = [
    "acceptance_rate",
    "acceptance_rate_from_logits",
    "best_gamma",
    "deferral_rate",
    "expected_chain_tokens",
    "expected_tokens",
    "expected_tree_tokens",
    "improves",
    "kseq_guarantee",
    "multi_draft_acceptance",
    "operations_factor",
    "optimal_acceptance",
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
    """How many times the arithmetic operations per token grow: (gamma * c_hat + gamma + 1) / expected_tokens, Theorem
    3.11.

    c_hat is the draft's operations per token over the target's.

    >>> round(operations_factor(0.8, 5, 0.05), 6)
    1.694097
    """
    _check("operations_factor", alpha=alpha, gamma=gamma, c_hat=c_hat)
    return (gamma * c_hat + gamma + 1) / expected_tokens(alpha, gamma)


def improves(alpha: float, c: float) -> bool:
    """Whether some gamma beats plain decoding: alpha > c, and then gamma = 1 gains (1 + alpha) / (1 + c) at least
    (Corollary 3.9)."""
    _check("improves", alpha=alpha, c=c)
    return alpha > c


def best_gamma(alpha: float, c: float, max_gamma: int = 64) -> int:
    """The gamma in 0..max_gamma with the largest walltime factor (section 3.5); 0 means: do not draft. Ties: the
    smaller.

    The factor rises to one peak and falls, so the search stops at the first gamma that does not rise. With c = 0 (or
    alpha = 1 > c) it never stops rising, and max_gamma is the answer.

    >>> best_gamma(0.8, 0.05), best_gamma(0.5, 0.2), best_gamma(0.1, 0.2)
    (8, 1, 0)
    """
    _check("best_gamma", alpha=alpha, c=c, max_gamma=max_gamma)
    best, tokens, power = 0, 1.0, 1.0
    for gamma in range(1, int(max_gamma) + 1):
        power *= alpha
        # One more draft pays iff its token's chance, alpha^gamma, exceeds the price of a draft step at the present
        # rate.
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
    """acceptance_rate of the laws that [N, V] target and [N, Vq] draft logits stand for, row by row in float64 -> [N].

    target_stats, draft_stats: [N, 4] as row_stats returns them (temperature and filters); None: temperature 1, no
    filter. A row that is no law (NaN, +inf or nothing finite) gives NaN.
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
    return torch.tensor([acceptance_rate(p, q).item() for p, q in pairs], dtype=torch.float64)


def optimal_acceptance(p: torch.Tensor, q: torch.Tensor, k: int) -> torch.Tensor:
    """The most that any lossless rule can accept of k drafts drawn i.i.d. from q, row by row in float64.

    The optimal transport with membership cost (SpecTr) by max-flow and min-cut: 1 + min_H (p(H) - q(H)^k) over
    sets H of tokens, and the best H is a prefix of the tokens sorted by ascending p / q: O(V log V).

    p: [..., V], q: [..., Vq] probabilities -> [...].

    >>> p, q = torch.tensor([.5, .3, .2]).double(), torch.tensor([.2, .5, .3]).double()
    >>> [round(optimal_acceptance(p, q, k).item(), 6) for k in (1, 2, 3)]
    [0.7, 0.86, 0.988]
    """
    p, q = _pair("optimal_acceptance", p, q, k)
    order = torch.where(q > 0, p / q, math.inf).argsort(-1)
    P, Q = p.gather(-1, order).cumsum(-1), q.gather(-1, order).cumsum(-1)
    return 1 + (P - Q**k).amin(-1).clamp(max=0)


def kseq_guarantee(k: int) -> float:
    """K-SEQ accepts at least this share of the optimum: 1 - (1 - 1/k)^k, which is above 1 - 1/e (SpecTr).

    >>> round(kseq_guarantee(1), 6), round(kseq_guarantee(4), 6), kseq_guarantee(10**6) > 1 - math.exp(-1)
    (1.0, 0.683594, True)
    """
    if k != int(k) or k < 1:
        raise ValueError(f"kseq_guarantee: k must be an integer >= 1, got {k}")
    return 1 - (1 - 1 / k) ** k


def multi_draft_acceptance(
    p: torch.Tensor, q: torch.Tensor, k: int, method: str, draws: int | None = None, seed: int = 0
) -> torch.Tensor:
    """The chance that one of k drafts at a node is accepted, row by row in float64; optimal_acceptance bounds those of
    i.i.d. drafts.

    p: [..., V], q: [..., Vq] probabilities -> [...]. method:

    - "kseq": i.i.d. drafts, p_acc = 1 - (1 - beta)^k at the best rho.
    - "recursive": i.i.d. drafts. What stays of p after j rejections does not depend on the tokens, so the chance is
      1 - prod_j (1 - sum_x min(q, r_j)): O(k V).
    - "recursive_without_replacement": k distinct drafts; every ordered set of rejected tokens is enumerated, V^(k-1) of
      them, or, with `draws`, so many ordered sets are drawn for each row, and the mean of their exact chances is an
      unbiased estimate.
    - "target_only": i.i.d. drafts merged, sum_x p(x) (1 - (1 - q(x))^k).

    >>> p, q = torch.tensor([.5, .3, .2]).double(), torch.tensor([.2, .5, .3]).double()
    >>> [round(multi_draft_acceptance(p, q, 2, m).item(), 6) for m in ("kseq", "recursive", "recursive_without_replacement", "target_only")]
    [0.791355, 0.76, 0.808571, 0.507]
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
    p, q = _pair(op, p, q, k)
    if draws is None and method == "recursive_without_replacement" and p.size(-1) ** (k - 1) > 10**6:
        raise ValueError(f"{op}: method {method!r} needs V^(k-1) <= 10^6 or draws, got V={p.size(-1)}, k={k}")
    if draws is not None and draws < 1:
        raise ValueError(f"{op}: draws must be an integer >= 1 or None, got {draws}")
    rows = zip(p.reshape(-1, p.size(-1)).numpy(), q.reshape(-1, p.size(-1)).numpy())
    return torch.tensor([rules[method](a, b) for a, b in rows], dtype=torch.float64).reshape(p.shape[:-1])


def expected_tree_tokens(p, q, K: int, L: int, method: str, drawn: str = "iid") -> float:
    """Expected tokens of one target call that verifies K drafts of length L, by enumeration: small V, K and L only.

    p(prefix), q(prefix) -> [V] float64, the laws behind a tuple of tokens. drawn "iid": K independent drafts merged by
    build_tree; "distinct": K children without replacement at every node ("kseq" and "recursive" are not lossless
    there).

    >>> rows = lambda t: [1/3, 2/3], lambda t: [2/3, 1/3]
    >>> round(expected_tree_tokens(*rows, 1, 2, "recursive"), 6), round(expected_tree_tokens(*rows, 1, 2, "traversal"), 6)
    (2.111111, 2.222222)
    """
    from ..reference.tree_law import distinct_trees, expected_length, iid_trees, mixed

    if drawn not in ("iid", "distinct"):
        raise ValueError(f"expected_tree_tokens: drawn must be 'iid' or 'distinct', got {drawn!r}")
    trees = iid_trees(q, K, L) if drawn == "iid" else distinct_trees(q, [K] * L)
    return float(expected_length(mixed(trees, p, q, method)))


def expected_chain_tokens(
    p, q, gamma: int, method: str = "token", rule: str = "exact", alpha=None, p1=None, q1=None
) -> float:
    """Expected tokens of one target call that verifies one path of gamma drafts, by enumeration: small V and gamma
    only.

    p(prefix) -> [V] float64, q(prefix) -> [V], the laws behind a tuple of tokens; p1, q1: the same rows unscaled
    (temperature 1, no filters), which the cascades' confidences are read from, by default p and q. method "block" never
    expects fewer than "token", whatever the law that the rule puts in place of p (Sun et al. 2024).

    >>> rows = lambda t: [1/3, 2/3], lambda t: [2/3, 1/3]
    >>> [round(expected_chain_tokens(*rows, 2, method), 6) for method in ("token", "block")]
    [2.111111, 2.222222]
    >>> expected_chain_tokens(*rows, 2, rule="chow", alpha=0.5)
    3.0
    """
    from ..reference.chain_law import chain_law

    _check("expected_chain_tokens", gamma=gamma)
    if method not in ("token", "block"):
        raise ValueError(f"expected_chain_tokens: method must be 'token' or 'block', got {method!r}")
    law = chain_law(p, q, int(gamma), method=method, rule=rule, alpha=alpha, p1=p1, q1=q1)
    return math.fsum(len(tokens) * float(mass) for tokens, mass in law.items())


def deferral_rate(p: torch.Tensor, q: torch.Tensor, rule: str, alpha=None, p1=None, q1=None) -> torch.Tensor:
    """The chance that a speculative cascade hands a token drafted from q over to the target, row by row in float64.

    p: [..., V], q: [..., Vq] probabilities; p1, q1: the same rows unscaled, by default p and q -> [...]: 0 or 1 under a
    rule that defers whole rows ("chow" ... "opt_log"), the mass eta of the tokens that are not kept under "token_v1"
    ... "token_v3".

    >>> p, q = torch.tensor([.5, .3, .2]).double(), torch.tensor([.2, .5, .3]).double()
    >>> [round(deferral_rate(p, q, rule, 0.45).item(), 6) for rule in ("chow", "diff", "token_v1", "token_v3")]
    [1.0, 0.0, 0.0, 0.3]
    """
    from ..reference.rules import mix_of, resolved
    from ..reference.rules.one_step import pair_of

    op = "deferral_rate"
    cascades = ("chow", "chow_log", "diff", "diff_log", "opt", "opt_log", "token_v1", "token_v2", "token_v3")
    if rule not in cascades:
        raise ValueError(f"{op}: rule must be one of {', '.join(map(repr, cascades))}, got {rule!r}")
    _, alpha = resolved(op, "token", rule, alpha)
    rows = [_pair(op, *pair, 1) for pair in ((p, q), (p if p1 is None else p1, q if q1 is None else q1))]
    flat = [x.reshape(-1, x.size(-1)).numpy() for pair in rows for x in pair]
    out = [float(mix_of(pair_of(*each), rule, alpha).a) for each in zip(*flat)]
    return torch.tensor(out, dtype=torch.float64).reshape(p.shape[:-1])


def _pair(op, p, q, k):
    """p and q as float64 laws of one width."""
    if k != int(k) or k < 1:
        raise ValueError(f"{op}: k must be an integer >= 1, got {k}")
    for name, x in (("p", p), ("q", q)):
        if not x.is_floating_point():
            raise TypeError(f"{op}: {name} must be a floating-point tensor, got {x.dtype}")
    if p.shape[:-1] != q.shape[:-1]:
        raise ValueError(f"{op}: q must have leading shape {list(p.shape[:-1])}, got {list(q.shape[:-1])}")
    wide = max(p.size(-1), q.size(-1))
    return tuple(torch.nn.functional.pad(x.double().cpu(), (0, wide - x.size(-1))) for x in (p, q))


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
        for x in (q > kept).nonzero()[0]:  # drawn and rejected with q(x) - min(q(x), r(x))
            left = q.copy()
            left[x] = 0
            if left.sum() > 0:
                accepted += (q[x] - kept[x]) * _distinct(rest / rest.sum(), left / left.sum(), k - 1)
    return accepted


def _drawn(r, q, k, rng):
    """The chance that one of k distinct drafts, drawn here one after the other, is accepted."""
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
