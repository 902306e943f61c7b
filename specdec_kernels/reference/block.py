# SPDX-License-Identifier: Apache-2.0
"""Block verification (Sun et al. 2024, "Block Verification Accelerates Speculative Decoding", arXiv 2403.10444).

    r_0 = 1,  r_i = min(1, r_{i-1} p_{i-1}(d_i) / q_{i-1}(d_i))
    s_i = sum (r_i p_i - q_i)+
    h_i = s_i / (s_i + 1 - r_i),  h_g = r_g

eta_i are independent uniforms. tau is the largest i with eta_i < h_i, or 0 if there is none. The step emits d_1 ..
d_tau and a token drawn from norm((r_tau p_tau - q_tau)+), or from p_g if tau = g. A rule that defines a distribution pi
uses pi instead of p.
"""

from functools import singledispatch

import numpy as np

from .rules import final, pair_and_mix


def block(chain):
    rows, r = [], [1.0]  # (p_i, its pair and mix) at each position, and r_i
    for i, d in enumerate(chain.drafts):
        p = chain.p(i)
        if not chain.readable(p, d):
            chain.bonus = None
            break  # the drafts end here
        known = pair_and_mix(chain, i, d, p)
        rows.append((p, known))
        r.append(next_r(r[-1], d, p, known))
        if r[-1] == 0:
            break  # every later r and h is 0
    last = len(r) - 1
    if last == len(chain.drafts) and r[last] > 0:
        chain.pair_after(last)  # sets the status if the last row is invalid
    going_back = (i for i in range(last, 0, -1) if r[i] > 0 and chain.chance.below(i - 1, h_at(i, last, rows, r)))
    tau = next(going_back, 0)
    for d, (p, _) in zip(chain.drafts[:tau], rows):
        chain.take(d, p)
    if tau == last and r[tau] > 0:
        return chain.end()
    p, known = rows[tau]
    return chain.draw(p, () if known is None else final(p, *known, r[tau]))


def next_r(r, d, p, known):
    if known is None:  # greedy
        return r if d == p.fallback else 0.0
    pair, mix = known
    pi, q = mix.law(pair), pair.q
    return np.minimum(1.0, r * pi[d] / q[d]) if q[d] > 0 and pi[d] > 0 else 0.0


def h_at(i, last, rows, r):
    p, known = rows[i] if i < last else (None, None)
    if i == last or not (known is None or p.valid):  # an invalid row has no residual
        return r[i]
    if known is None:
        # p is greedy, and q counts as one-hot at the draft. If the draft is p's token, s_i = (r_i - 1)+ = 0; else s_i =
        # r_i and r_{i+1} = 0.
        return r[i] if r[i + 1] == 0 else h(r[i], 0.0)
    pair, mix = known
    return h(r[i], mix.leftover(pair, r[i]).sum())


@singledispatch
def h(r, s):
    """Return h_i, which is 1 at r_i = 1. If s_i is 0 there (0 / 0), no result depends on it: then p_i = q_i, so r_{i+1}
    and h_{i+1} are 1, and a later draft is accepted.
    """
    return 1.0 if r == 1 else share(s, r)


@singledispatch
def share(s, r):
    """Return s / (s + 1 - r), with 0 / 0 = 0."""
    below = s + 1 - r
    return s / below if below > 0 else 0.0
