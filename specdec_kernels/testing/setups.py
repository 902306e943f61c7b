# SPDX-License-Identifier: Apache-2.0
"""Pairs of a target and a draft for which wrong verification rules differ clearly from right ones."""

from __future__ import annotations

import numpy as np

from .verifiers import Case

NEVER = -np.inf


def noise(seed: int, width: int, spread: float = 1.5):
    """Return a model whose logits depend on every token so far."""
    return lambda tokens: spread * np.random.default_rng([seed, len(tokens), *tokens]).standard_normal(width)


def by_position(model):
    return lambda tokens: model((0,) * len(tokens))


def turned(*rows):
    """Return a model with one row per position, rotated by the last token. A constant is added to its logits, which
    changes no probability."""
    return lambda tokens: np.roll(rows[len(tokens)], sum(tokens[-1:])) + 40.0 * len(tokens)


def ln(*p):
    with np.errstate(divide="ignore"):
        return np.log(p)


def gap(g: float) -> Case:
    """Return a case in which each side has its mass on three of five tokens, two of them in common. All other logits
    lie g to 2 g lower."""
    p, q = [0.0, -0.9, -g, -0.5, -2 * g], [-g, 0.0, -0.5, -1.2, -g]
    return Case(
        f"gaps of {g:g}",
        "sums that overflow, residuals that vanish, impossible tokens drawn or accepted, logits of unequal scale",
        turned(p, p[::-1], p),
        turned(q, q[::-1]),
        2,
    )


def long_tail() -> Case:
    """Return a case with 64 tokens, most of them improbable. Only two can be the bonus token, so that there are few
    sequences."""
    tail = noise(8, 63, 0.5)(())
    p, q = (np.append(top, tail - np.log(63)) for top in (0.3, 1.0))
    bonus = np.full(64, NEVER)
    bonus[:2] = 0.4, 0.0
    return Case(
        "long tail",
        "random numbers and sums of too few bits",
        lambda tokens: bonus if tokens else p,
        lambda tokens: np.roll(q, 1),
        1,
    )


def forbidden() -> list[Case]:
    """Return cases in which some tokens have probability 0 on one side."""
    return [
        Case(
            "supports that differ",
            "tokens that one side forbids: accepted where p is 0, lost where q is 0",
            turned([0.0, NEVER, 0.7, -0.4, NEVER], [NEVER, 0.3, 0.0, NEVER, 0.9], [0.0, 0.5, NEVER, NEVER, 0.2]),
            turned([0.5, 0.2, NEVER, -0.3, 0.4], [0.3, NEVER, 0.5, 0.6, 0.0]),
            2,
        ),
        Case(
            "disjoint supports",
            "a draft accepted although the target forbids it; the whole of p is the residual",
            turned([0.4, 0.0, 0.2, 0.1, -0.6], [0.0, 0.6, NEVER, -0.5, NEVER], [0.0, 0.5, NEVER, NEVER, NEVER]),
            turned([0.3, 0.7, 0.9, -0.9, 0.0], [NEVER, NEVER, 0.1, NEVER, 0.3]),
            2,
        ),
    ]


def cases() -> list[Case]:
    """Return the cases to test a verifier with: a target, a draft, and the errors that the case was made to find.

    Returns:
        list of ``Case``: vocabularies of 4 to 64 tokens, 1 to 3 drafted tokens, rows at temperature 1 without filters.

    Example:
        >>> cases()[0].name
        'reversed draft'
    """
    return [
        Case(
            "reversed draft",
            "one uniform used twice, p and q exchanged, a residual that is not renormalised or that is p",
            lambda tokens: ln(0.4, 0.3, 0.2, 0.1) + 1.5,
            lambda tokens: ln(0.1, 0.2, 0.3, 0.4),
            2,
        ),
        Case(
            "rows by position",
            "a row off by one, the bonus token from the wrong row",
            by_position(noise(1, 6)),
            by_position(noise(2, 6)),
            2,
        ),
        Case(
            "rows by prefix",
            "acceptances counted after the first rejection, a tested token from the wrong request",
            noise(3, 4),
            lambda tokens: noise(3, 4)(tokens) + noise(4, 4, 1.0)(tokens),
            3,
        ),
        Case(
            "opposed draft",
            "residuals that are wrong, lenient tests: most drafts are rejected",
            noise(5, 5),
            lambda tokens: -1.2 * noise(5, 5)(tokens),
            2,
        ),
        Case(
            "draft equals target",
            "numbers shared by drafting and verification: every draft is accepted, and no residual is needed",
            noise(6, 4),
            noise(6, 4),
            2,
        ),
        *forbidden(),
        gap(50),
        gap(300),
        long_tail(),
        Case(
            "one-hot draft",
            "a certain draft accepted with p(d) and then drawn again: d comes out with p(d) (2 - p(d))",
            noise(7, 5),
            lambda tokens: int(noise(7, 5)(tokens).argmax()),
            2,
        ),
    ]
