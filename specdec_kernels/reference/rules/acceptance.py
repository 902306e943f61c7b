# SPDX-License-Identifier: Apache-2.0
"""Rules that only change the test. They define no distribution in place of p, so they verify one token at a time.

Each function takes (chain, i, d, p, *alpha): the draft d at position i, and p, the target's Law there. It returns
(accepted, weights of the final draw after a rejection). The weights are a tuple of alternatives, the first choice
first; () means p itself. p1 is p at T = 1 without filters.
"""

import math
from functools import singledispatch

from ...registry import RULES
from ..law import positive
from .cascades import entropy, largest
from .laws import final
from .pair import DEFER


def lenience(chain, i, d, p, l):
    """Test with q scaled by l; the residual has the unscaled q (Leviathan et al. 2023, A.5).

    For a greedy target the test is deterministic: p1(d) >= l max p1.
    """
    if p.greedy:
        p1 = chain.target1(i).p
        return near_largest(chain, p1, d, l * largest(p1)) or d == p.fallback, ()
    pair = chain.pair(i, d, p)
    chain.flag(pair, d)
    return chain.chance.accepts(i, pair.p[d], pair.q[d], l), final(p, pair, DEFER)


def near_largest(chain, p1, d, edge):
    """Return whether p1(d) >= edge, for an edge of at most max p1."""
    return bool(p1[d] == largest(p1) or chain.chance.reaches(p1[d], edge))


def typical(chain, i, d, p, eps, delta):
    """Accept iff p(d) > min(eps, delta exp(-H(p))) (Medusa, Cai et al. 2024)."""
    if not p.valid:
        return bool(p.p[d] > eps), ()
    return not chain.chance.reaches(typical_edge(entropy(p.p), eps, delta), p.p[d]), ()


@singledispatch
def typical_edge(h, eps, delta):
    return min(eps, delta * math.exp(-h))


def relaxed(chain, i, d, p, n, delta):
    """Accept by TensorRT-LLM's relaxed test.

    d must be among the n largest of p1 (ties included), with p1(d) >= max p1 - delta and p1(d) > 0.
    """
    p1 = chain.target1(i)
    if not p1.valid:
        return False, ()
    near = near_largest(chain, p1.p, d, largest(p1.p) - delta)
    return bool(near and p1.p[d] > 0 and (p1.p > p1.p[d]).sum() < n), ()


def synthetic(chain, i, d, p, *rates):
    """Accept at a given rate without reading the rows. rates: one for each position, or one for all."""
    rate = rates[i] if len(rates) > 1 else rates[0]
    return bool(d < chain.vocab and chain.chance.below(i, rate)), ()


def thresholds(chain, i, d, p, single, acc):
    """Accept by SGLang's target-only test with one child: the uniform is below p(d) / acc, or p(d) >= single.

    A rejected d is removed from p.
    """
    if chain.chance.reaches(p.p[d], single) or chain.chance.below(i, p.p[d] / acc):
        return True, ()
    w = positive(p.p)
    w[d] = 0.0
    return False, (w,)


TESTS = {name: globals()[name] for name, rule in RULES.items() if not rule.defines_distribution}
