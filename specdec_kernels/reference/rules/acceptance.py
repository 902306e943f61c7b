# SPDX-License-Identifier: Apache-2.0
"""Rules that change the test alone: what they emit is no law put in place of p, so they verify one token at a time.

Each takes (chain, i, d, p, *alpha), d the draft at position i and p its Law there, and returns (accepted, weights of
the final draw after a rejection, first choice first; () for p itself).
"""

import math

import numpy as np

from ..law import ratio
from .cascades import entropy, largest
from .laws import final
from .pair import DEFER


def lenience(chain, i, d, p, l):
    """Leviathan et al. 2023, A.5: q counts as l q in the test and as q in the residual. At a greedy target the test is
    p1(d) >= l max p1, deterministic."""
    if p.greedy:
        p1 = chain.target1(i)
        top, top_err = largest(p1)
        if p1.p[d] < top:
            chain.chance.note(ratio(abs(p1.p[d] - l * top), p1.err[d] + l * top_err))
        return bool(d == p.fallback or p1.p[d] >= l * top), ()
    pair = chain.pair(i, d, p)
    chain.flag(pair, d)
    accepted = chain.chance.accepts(i, pair.p[d], pair.q[d], pair.p_err[d], l * pair.q_err[d], l)
    return accepted, final(p, pair, DEFER)


def typical(chain, i, d, p, eps, delta):
    """Medusa (Cai et al. 2024): accept iff p(d) > min(eps, delta exp(-H(p)))."""
    if not p.valid:
        return bool(p.p[d] > eps), ()
    h, h_err = entropy(p)
    x = delta * math.exp(-h)
    x_err, edge = x * h_err, min(eps, x)
    chain.chance.note(ratio(abs(p.p[d] - edge), p.err[d] + (x_err if x - eps <= x_err else 0.0)))
    return bool(p.p[d] > edge), ()


def relaxed(chain, i, d, p, n, delta):
    """TensorRT-LLM's relaxed acceptance: d among the n largest of p1 (ties stay), p1(d) >= max p1 - delta, and p1(d) >
    0."""
    p1 = chain.target1(i)
    if not p1.valid:
        return False, ()
    top, top_err = largest(p1)
    if p1.p[d] < top:
        chain.chance.note(ratio(abs(p1.p[d] - (top - delta)), p1.err[d] + top_err))
    among = (p1.p > p1.p[d]).sum() < n
    return bool(among and p1.p[d] > 0 and p1.p[d] >= top - delta), ()


def synthetic(chain, i, d, p, *rates):
    """Accept with the position's chance, or one for all, whatever the rows say."""
    rate = rates[i] if len(rates) > 1 else rates[0]
    return bool(d < chain.vocab and chain.chance.below(i, rate, 0.0)), ()


def thresholds(chain, i, d, p, single, acc):
    """SGLang's target-only test with one child: the coin lies below p(d) / acc, or p(d) >= single. A rejected d leaves
    p."""
    edge, err = p.p[d] / acc, p.err[d] / acc
    chain.chance.note(ratio(abs(p.p[d] - single), p.err[d]) if single < 1 else math.inf)
    if p.p[d] >= single or chain.chance.below(i, edge, err):
        return True, ()
    w, w_err = np.where(p.p > 0, p.p, 0.0), p.err.copy()
    w[d] = w_err[d] = 0.0
    return False, ((w, w_err),)


TESTS = {"lenience": lenience, "typical": typical, "relaxed": relaxed, "synthetic": synthetic, "thresholds": thresholds}
