# SPDX-License-Identifier: Apache-2.0
"""Gain from one chain of drafts (Leviathan, Kalman, Matias 2023, "Fast Inference from Transformers via Speculative
Decoding").

alpha is the mean acceptance rate, gamma the number of drafted tokens, and c the cost of one draft step divided by that
of one target step. The formulas assume that acceptances are independent with one rate alpha (section 3.1 of the paper).
"""

import math

__all__ = [
    "alpha_for_tokens",
    "best_gamma",
    "expected_chain_tokens",
    "expected_tokens",
    "hierarchical_factor",
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
    """Return the expected number of tokens of one target call.

    The result is summed as 1 + alpha + ... + alpha^gamma, which needs no special case near alpha = 1.

    Args:
        alpha: mean acceptance rate, in [0, 1].
        gamma: drafted tokens, an integer >= 0.

    Returns:
        (1 - alpha^(gamma+1)) / (1 - alpha); gamma + 1 at alpha = 1.

    Raises:
        ValueError: a parameter outside its range.

    Example:
        >>> round(expected_tokens(0.8, 5), 5)
        3.68928

    Source:
        Leviathan et al. 2023, Eq. (1).
    """
    _check("expected_tokens", alpha=alpha, gamma=gamma)
    return math.fsum(alpha**i for i in range(int(gamma) + 1))


def alpha_for_tokens(tokens: float, gamma: int) -> float:
    """Return the acceptance rate at which a target call emits `tokens` on average: the inverse of expected_tokens.

    A load test can pass it to ``verify_chain(rule="synthetic", alpha=...)`` to imitate a draft model that it lacks.

    Args:
        tokens: expected tokens of one target call, including the target's own token, in [1, gamma + 1].
        gamma: drafted tokens, an integer >= 1.

    Returns:
        The rate, in [0, 1], to about 1e-16.

    Raises:
        ValueError: a parameter outside its range.

    Example:
        >>> round(alpha_for_tokens(3.68928, 5), 9)
        0.8

    Source:
        Leviathan et al. 2023, Eq. (1).
    """
    _check("alpha_for_tokens", gamma=gamma)
    if gamma < 1 or not 1 <= tokens <= gamma + 1:
        raise ValueError(f"alpha_for_tokens: tokens must lie in [1, gamma + 1] of a gamma >= 1, got {tokens}, {gamma}")
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if expected_tokens(middle, gamma) < tokens else (low, middle)
    return high


def walltime_factor(alpha: float, gamma: int, c: float) -> float:
    """Return the expected speed-up over plain decoding.

    The formula assumes that the target scores gamma + 1 positions in the time of one.

    Args:
        alpha, gamma: as in expected_tokens.
        c: seconds of a draft step divided by those of a target step, finite and >= 0.

    Returns:
        expected_tokens / (gamma * c + 1).

    Raises:
        ValueError: a parameter outside its range.

    Example:
        >>> round(walltime_factor(0.8, 5, 0.05), 6)
        2.951424

    Source:
        Leviathan et al. 2023, Theorem 3.8.
    """
    _check("walltime_factor", alpha=alpha, gamma=gamma, c=c)
    return expected_tokens(alpha, gamma) / (gamma * c + 1)


def hierarchical_factor(
    alpha: float, gamma: int, c: float, inner_alpha: float, inner_gamma: int, inner_c: float
) -> float:
    """Return the expected speed-up over plain decoding if the draft model is itself decoded speculatively.

    The formula assumes independent acceptances, and a draft model that scores inner_gamma + 1 positions in the time of
    one.

    Args:
        alpha, gamma, c: of the draft model with the target, as in walltime_factor.
        inner_alpha, inner_gamma: of the inner drafter with the draft model.
        inner_c: seconds of an inner draft step divided by those of a target step, finite and >= 0.

    Returns:
        walltime_factor(alpha, gamma, c / F), where F = walltime_factor(inner_alpha, inner_gamma, inner_c / c).

    Raises:
        ValueError: a parameter outside its range, or c = 0.

    Example:
        >>> round(hierarchical_factor(0.9, 17, 0.1, 0.8, 11, 0.002), 6)
        5.880037

    Source:
        Leviathan et al. 2023, Theorem 3.8, for both steps; Spector & Re 2023 (staged speculative decoding).
    """
    _check("hierarchical_factor", alpha=alpha, gamma=gamma, c=c)
    if c == 0:
        raise ValueError("hierarchical_factor: c must be above 0: a draft model that costs nothing needs no drafts")
    _check("hierarchical_factor (inner)", alpha=inner_alpha, gamma=inner_gamma, c=inner_c)
    return walltime_factor(alpha, gamma, c / walltime_factor(inner_alpha, inner_gamma, inner_c / c))


def operations_factor(alpha: float, gamma: int, c_hat: float) -> float:
    """Return the factor by which the arithmetic operations per emitted token grow.

    Args:
        alpha, gamma: as in expected_tokens.
        c_hat: the draft's operations per token divided by the target's, finite and >= 0.

    Returns:
        (gamma * c_hat + gamma + 1) / expected_tokens.

    Raises:
        ValueError: a parameter outside its range.

    Example:
        >>> round(operations_factor(0.8, 5, 0.05), 6)
        1.694097

    Source:
        Leviathan et al. 2023, Theorem 3.11.
    """
    _check("operations_factor", alpha=alpha, gamma=gamma, c_hat=c_hat)
    return (gamma * c_hat + gamma + 1) / expected_tokens(alpha, gamma)


def improves(alpha: float, c: float) -> bool:
    """Return whether some gamma beats plain decoding.

    Args:
        alpha, c: as in walltime_factor.

    Returns:
        alpha > c. If that holds, gamma = 1 already speeds up decoding by (1 + alpha) / (1 + c).

    Raises:
        ValueError: a parameter outside its range.

    Example:
        >>> improves(0.5, 0.2), improves(0.1, 0.2)
        (True, False)

    Source:
        Leviathan et al. 2023, Corollary 3.9.
    """
    _check("improves", alpha=alpha, c=c)
    return alpha > c


def best_gamma(alpha: float, c: float, max_gamma: int = 64) -> int:
    """Return the number of drafts with the largest walltime factor.

    The factor has one peak over gamma, so the search stops at the first gamma that does not improve it. If c = 0
    and alpha > 0, or alpha = 1 > c, each draft improves it, and the result is max_gamma.

    Args:
        alpha, c: as in walltime_factor.
        max_gamma: the largest gamma to consider.

    Returns:
        The best of 0..max_gamma, the smallest among equals; 0 means that drafting does not pay.

    Raises:
        ValueError: a parameter outside its range.

    Example:
        >>> best_gamma(0.8, 0.05), best_gamma(0.5, 0.2), best_gamma(0.1, 0.2)
        (8, 1, 0)

    Source:
        Leviathan et al. 2023, section 3.5.
    """
    _check("best_gamma", alpha=alpha, c=c, max_gamma=max_gamma)
    best, tokens, power = 0, 1.0, 1.0
    for gamma in range(1, int(max_gamma) + 1):
        power *= alpha
        # One more draft pays iff the probability alpha^gamma that it is accepted exceeds the tokens that decoding emits
        # in the time of a draft step, at the current rate.
        if not power * ((gamma - 1) * c + 1) > c * tokens:
            break
        best, tokens = gamma, tokens + power
    return best


def expected_chain_tokens(
    p, q, gamma: int, method: str = "token", rule: str = "exact", alpha=None, p1=None, q1=None
) -> float:
    """Return the expected tokens of one target call that verifies one chain, by enumeration: small V and gamma only.

    Args:
        p, q: p(prefix) -> [V] float64, q(prefix) -> [V]: the distributions after a tuple of tokens.
        gamma: drafted tokens.
        method: "token" or "block". "block" never gives a smaller expectation, under every rule that it supports.
        rule, alpha: a rule of specdec_kernels.rules and its parameters.
        p1, q1: the same rows unscaled (temperature 1, no filters), from which cascades read confidences; by default p
            and q.

    Returns:
        The expected number of tokens, the final one included.

    Raises:
        ValueError: an unknown method or rule, or a gamma or alpha outside its range.

    Example:
        >>> rows = lambda t: [1/3, 2/3], lambda t: [2/3, 1/3]
        >>> [round(expected_chain_tokens(*rows, 2, method), 6) for method in ("token", "block")]
        [2.111111, 2.222222]
        >>> expected_chain_tokens(*rows, 2, rule="chow", alpha=0.5)
        3.0

    Source:
        Leviathan et al. 2023; Sun et al. 2024 ("Block Verification Accelerates Speculative Decoding").
    """
    from ..reference.chain_law import chain_law

    _check("expected_chain_tokens", gamma=gamma)
    if method not in ("token", "block"):
        raise ValueError(f"expected_chain_tokens: method must be 'token' or 'block', got {method!r}")
    law = chain_law(p, q, int(gamma), method=method, rule=rule, alpha=alpha, p1=p1, q1=q1)
    return math.fsum(len(tokens) * float(mass) for tokens, mass in law.items())
