# SPDX-License-Identifier: Apache-2.0
"""The acceptance rules by name: code, parameters with their ranges, and the law or the guarantee of what is emitted.

p target, q draft, both as sampled (temperature, filters); p1, q1: the unscaled softmax of the same rows (T = 1, no
filters); TV = sum (p - q)+. Every comparison that keeps a draft is written so that NaN defers to the target.
"""

from typing import NamedTuple


class Parameter(NamedTuple):
    name: str
    opening: str  # "[" or "("
    low: float
    high: float
    closing: str
    default: float  # the strictest value; Medusa's own for "typical"

    @property
    def range(self):
        return f"{self.opening}{self.low:g}, {self.high:g}{self.closing}"

    def __contains__(self, x):
        above = self.low <= x if self.opening == "[" else self.low < x
        return above and (x <= self.high if self.closing == "]" else x < self.high)


class Rule(NamedTuple):
    code: int
    parameters: tuple  # of Parameter: what alpha holds
    defines_distribution: (
        bool  # the emitted tokens follow a law pi = T(q, p) position by position; such rules go with every method
    )
    says: str
    exact_at: float | None = None  # the alpha at which the rule is "exact", bit for bit


INF = float("inf")


def _unit(name="alpha", default=0.0):
    return Parameter(name, "[", 0, 1, "]", default)


def _open(name="alpha"):
    return Parameter(name, "[", 0, INF, ")", 0.0)


def _positive(name):
    return Parameter(name, "(", 0, 1, "]", 1.0)


TABLE = {
    "exact": Rule(0, (), True, "pi = p"),
    # Speculative cascades (Narasimhan et al. 2024): pi = p where the rule defers, else q. Of a wider draft, pi keeps
    # what lies in the target's vocabulary, and leaves the rest to p.
    "chow": Rule(1, (_unit(),), True, "defers iff max q1 < 1 - alpha"),
    "chow_log": Rule(2, (_open(),), True, "defers iff H(q1) > alpha"),
    "diff": Rule(3, (_unit(),), True, "defers iff max q1 < max p1 - alpha"),
    "diff_log": Rule(4, (_open(),), True, "defers iff H(q1) > H(p1) + alpha"),
    "opt": Rule(5, (_open(),), True, "defers iff max q1 < max p1 - alpha TV"),
    "opt_log": Rule(6, (_open(),), True, "defers iff H(q1) > H(p1) + alpha TV"),
    # Token by token: pi(v) = q(v) [v kept] + eta p(v), eta = the mass of q that is not kept.
    "token_v1": Rule(7, (_unit(),), True, "keeps v iff q1(v) >= max p1 - alpha"),
    "token_v2": Rule(8, (_unit(),), True, "keeps v iff p1(v) >= max p1 - alpha"),
    "token_v3": Rule(9, (_unit(),), True, "keeps v iff p1(v) >= (1 - alpha) max p1"),
    "lenience": Rule(
        10,
        (_positive("l"),),
        False,
        "accepts with min(1, p / (l q)), else norm((p - q)+): emitted(x) <= p(x) / l; greedy: p1(x) >= l max p1",
        1.0,
    ),
    "lossy": Rule(
        11,
        (Parameter("alpha", "[", 0, 1, ")", 0.0),),
        True,
        "accepts with min(1, p / ((1 - alpha) q)): pi = max(min(q, p / (1 - alpha)), p / beta), beta solved so that sum pi = 1",
        0.0,
    ),
    "ensemble": Rule(12, (_unit("w", 1.0),), True, "pi = w p + (1 - w) q", 1.0),
    "typical": Rule(
        13,
        (_unit("eps", 0.09), _open("delta")._replace(default=0.3)),
        False,
        "accepts A = {x: p(x) > min(eps, delta exp(-H(p)))}, else draws from p: emitted = q [A] + p q(not A)",
    ),
    "relaxed": Rule(
        14,
        (Parameter("n", "[", 1, INF, ")", 1.0), _unit("delta")),
        False,
        "accepts A = {x among the n largest of p1, p1(x) >= max p1 - delta, p1(x) > 0}, else draws from p: emitted = q [A] + p q(not A)",
    ),
    "synthetic": Rule(
        15, (_unit("rate"),), False, "accepts with chance rate, else draws from p: emitted = rate q + (1 - rate) p"
    ),
    "thresholds": Rule(
        16,
        (_positive("threshold_single"), _positive("threshold_acc")),
        False,
        "accepts d with chance A = 1 if p(d) >= threshold_single else min(1, p(d) / threshold_acc), else draws from p without d; "
        "(1, 1): the target's law whatever drafted d",
    ),
}
RULES = {name: rule.code for name, rule in TABLE.items()}
NAMES = {rule.code: name for name, rule in TABLE.items()}

LAWS = tuple(name for name, rule in TABLE.items() if rule.defines_distribution)


def of_tree_method(method: str) -> tuple[str, ...]:
    """The rules that a method of verify_tree takes: every law, but for those methods that test against the target
    alone."""
    return {"target_only": ("exact", "thresholds"), "greedy": ("exact",)}.get(method, LAWS)
