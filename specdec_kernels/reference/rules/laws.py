# SPDX-License-Identifier: Apache-2.0
"""The rules that are a law pi = a p + b q, and the test of a draft against it: u q(d) < pi(d), replaced by norm((pi -
q)+)."""

from ... import registry
from . import cascades, lossy
from .pair import DEFER

LAWS = {  # name: (the law of a Pair, the rows that must be laws as a whole: "p", "q")
    name: (getattr(cascades, name), "pq") if hasattr(cascades, name) else (getattr(lossy, name), "")
    for name in registry.LAWS
}

ROW_RULES = ("chow", "chow_log", "diff", "diff_log", "opt", "opt_log")


def mix_of(pair, rule, alpha):
    """The Mix of a rule; where a row that it needs is no law, the rule defers."""
    law, reads = LAWS[rule]
    q = pair.draft
    if ("p" in reads and not pair.target.valid) or not (q.valid or (q.gathered and "q" not in reads)):
        return DEFER
    if rule in ROW_RULES and q.greedy and not pair.inside[q.fallback]:
        return DEFER  # the draft's one token is none of the target's
    mix = law(pair, *alpha)
    beyond = (pair.q > 0) & ~pair.inside
    return mix.ceded(pair) if rule in (*ROW_RULES, "ensemble") and beyond.any() else mix


def judged(chain, i, d, p):
    """(pair, mix), or None: a greedy target accepts its argmax, and q is not read, where the rule comes to nothing
    else."""
    if p.greedy and chain.rule in ("exact", "lossy"):
        return None
    pair = chain.pair(i, d, p)
    mix = chain.chance.mix(pair, chain.rule, chain.alpha)
    chain.flag(pair, d)
    return pair, mix


def by_law(chain, i, d, p):
    """(accepted, weights of the final draw after a rejection, first choice first)."""
    known = judged(chain, i, d, p)
    if known is None:
        return d == p.fallback, ()
    pair, mix = known
    return chain.chance.accepts(i, mix.law(pair)[d], pair.q[d]), final(p, pair, mix)


def final(p, pair, mix, r=1.0):
    """What the final token may be drawn from: norm((r pi - q)+), or pi where rounding leaves nothing of it; () for p
    itself."""
    return () if p.greedy and mix.defers else (mix.leftover(pair, r), mix.law(pair))
