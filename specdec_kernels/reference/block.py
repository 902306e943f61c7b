# SPDX-License-Identifier: Apache-2.0
"""Block verification (Sun et al. 2024, "Block Verification Accelerates Speculative Decoding", arXiv 2403.10444).

r_0 = 1, r_i = min(1, r_{i-1} p_{i-1}(d_i) / q_{i-1}(d_i)); s_i = sum (r_i p_i - q_i)+; h_i = s_i / (s_i + 1 - r_i), h_g
= r_g. tau = the largest i with eta_i < h_i, else 0: then d_1 .. d_tau are emitted, and a token from norm((r_tau p_tau -
q_tau)+), or from p_g where tau = g. With a rule that is a law, pi stands in place of p.
"""

from functools import singledispatch

import numpy as np

from .rules import final, judged


def block(chain):
    rows, r = [], [1.0]  # what stands at each position, and r_i
    for i, d in enumerate(chain.drafts):
        p = chain.p(i)
        if not chain.readable(p, d):
            chain.bonus = None
            break  # the draft ends here
        known = judged(chain, i, d, p)
        rows.append((p, known))
        r.append(next_r(r[-1], d, p, known))
        if r[-1] == 0:
            break  # every later r and h is 0
    last = len(r) - 1
    if last == len(chain.drafts) and r[last] > 0:
        chain.pair_behind(last)  # looked at, and flagged if it is no law, before the way back
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
    if i == last or not (known is None or p.valid):  # nothing can be taken away from what is no law
        return r[i]
    # Greedy, the draft itself in place of q: where it is p's token, s_i = (r_i - 1)+ = 0; else s_i = r_i, r_{i+1} = 0.
    if known is None:
        return r[i] if r[i + 1] == 0 else h(r[i], 0.0)
    pair, mix = known
    return h(r[i], mix.leftover(pair, r[i]).sum())


@singledispatch
def h(r, s):
    """h_i; 1 at r_i = 1 whatever s_i is: 0 / 0 comes before an r_{i+1} of 1."""
    return 1.0 if r == 1 else share(s, r)


@singledispatch
def share(s, r):
    """s / (s + 1 - r), where 0 / 0 is 0."""
    below = s + 1 - r
    return s / below if below > 0 else 0.0
