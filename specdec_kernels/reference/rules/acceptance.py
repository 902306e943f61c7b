# SPDX-License-Identifier: Apache-2.0
"""Rules that change the test alone: what they emit is no law put in place of p, so they verify one token at a time.

Each takes (chain, i, d, p, *alpha), d the draft at position i and p its Law there, and returns (accepted, weights of
the final draw after a rejection, first choice first; () for p itself).
"""

import math
from functools import singledispatch

from ...registry import RULES
from ..law import positive
from .cascades import entropy, largest
from .laws import final
from .pair import DEFER


def lenience(chain, i, d, p, l):
    """Leviathan et al. 2023, A.5: q counts as l q in the test and as q in the residual. At a greedy target the test is
    p1(d) >= l max p1, deterministic."""
    if p.greedy:
        p1 = chain.target1(i).p
        return near_largest(chain, p1, d, l * largest(p1)) or d == p.fallback, ()
    pair = chain.pair(i, d, p)
    chain.flag(pair, d)
    return chain.chance.accepts(i, pair.p[d], pair.q[d], l), final(p, pair, DEFER)


def near_largest(chain, p1, d, edge):
    """p1(d) >= edge, an edge below max p1."""
    return bool(p1[d] == largest(p1) or chain.chance.reaches(p1[d], edge))


def typical(chain, i, d, p, eps, delta):
    """Medusa (Cai et al. 2024): accept iff p(d) > min(eps, delta exp(-H(p)))."""
    if not p.valid:
        return bool(p.p[d] > eps), ()
    return not chain.chance.reaches(typical_edge(entropy(p.p), eps, delta), p.p[d]), ()


@singledispatch
def typical_edge(h, eps, delta):
    return min(eps, delta * math.exp(-h))


def relaxed(chain, i, d, p, n, delta):
    """TensorRT-LLM's relaxed acceptance: d among the n largest of p1 (ties stay), p1(d) >= max p1 - delta, and p1(d) >
    0."""
    p1 = chain.target1(i)
    if not p1.valid:
        return False, ()
    near = near_largest(chain, p1.p, d, largest(p1.p) - delta)
    return bool(near and p1.p[d] > 0 and (p1.p > p1.p[d]).sum() < n), ()


def synthetic(chain, i, d, p, *rates):
    """Accept with the position's chance, or one for all, whatever the rows say."""
    rate = rates[i] if len(rates) > 1 else rates[0]
    return bool(d < chain.vocab and chain.chance.below(i, rate)), ()


def thresholds(chain, i, d, p, single, acc):
    """SGLang's target-only test with one child: the coin lies below p(d) / acc, or p(d) >= single. A rejected d leaves
    p."""
    if chain.chance.reaches(p.p[d], single) or chain.chance.below(i, p.p[d] / acc):
        return True, ()
    w = positive(p.p)
    w[d] = 0.0
    return False, (w,)


TESTS = {name: globals()[name] for name, rule in RULES.items() if not rule.defines_distribution}
