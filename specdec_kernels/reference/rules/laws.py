# SPDX-License-Identifier: Apache-2.0
"""The rules that define a distribution pi = a p + b q, and their test of a draft.

A draft d is accepted if u q(d) < pi(d), and otherwise replaced by a draw from norm((pi - q)+).
"""

from ... import registry
from . import cascades, lossy
from .pair import DEFER

# name: (function of (Pair, *alpha) that returns a Mix, reads). "pq" for all cascades: they defer if an entry of either
# row is invalid. "" for the others: they defer if the draft's row is missing or an invalid row of logits. In rows of
# probabilities, they count an invalid entry as 0.
LAWS = {
    name: (getattr(cascades, name), "pq") if hasattr(cascades, name) else (getattr(lossy, name), "")
    for name in registry.LAWS
}

ROW_RULES = ("chow", "chow_log", "diff", "diff_log", "opt", "opt_log")


def mix_of(pair, rule, alpha):
    """Return the Mix of a rule. A rule defers if a row that it needs is invalid."""
    law, reads = LAWS[rule]
    q = pair.draft
    if ("p" in reads and not pair.target.valid) or not (q.valid or (q.gathered and "q" not in reads)):
        return DEFER
    if rule in ROW_RULES and q.greedy and not pair.inside[q.fallback]:
        return DEFER  # the draft's only token is outside the target's vocabulary
    mix = law(pair, *alpha)
    beyond = (pair.q > 0) & ~pair.inside
    return mix.ceded(pair) if rule in (*ROW_RULES, "ensemble") and beyond.any() else mix


def pair_and_mix(chain, i, d, p):
    """Return (pair, mix), or None if q is not needed: a greedy target under "exact" or "lossy" accepts its argmax."""
    if p.greedy and chain.rule in ("exact", "lossy"):
        return None
    pair = chain.pair(i, d, p)
    mix = chain.chance.mix(pair, chain.rule, chain.alpha)
    chain.flag(pair, d)
    return pair, mix


def by_law(chain, i, d, p):
    """Test draft d. Return (accepted, weights).

    weights: arrays for the draw after a rejection, which uses the first one that has mass.
    """
    known = pair_and_mix(chain, i, d, p)
    if known is None:
        return d == p.fallback, ()
    pair, mix = known
    return chain.chance.accepts(i, mix.law(pair)[d], pair.q[d]), final(p, pair, mix)


def final(p, pair, mix, r=1.0):
    """Return the arrays of weights to try for the final token: (r pi - q)+, and pi if the first has no mass after
    rounding.

    () means p itself.
    """
    return () if p.greedy and mix.defers else (mix.leftover(pair, r), mix.law(pair))
