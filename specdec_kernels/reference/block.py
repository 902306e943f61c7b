# SPDX-License-Identifier: Apache-2.0
"""Block verification (Sun et al. 2024, "Block Verification Accelerates Speculative Decoding", arXiv 2403.10444).

r_0 = 1, r_i = min(1, r_{i-1} p_{i-1}(d_i) / q_{i-1}(d_i)); s_i = sum (r_i p_i - q_i)+; h_i = s_i / (s_i + 1 - r_i), h_g
= r_g. tau = the largest i with eta_i < h_i, else 0: then d_1 .. d_tau are emitted, and a token from norm((r_tau p_tau -
q_tau)+), or from p_g where tau = g. With a rule that is a law, pi stands in place of p.
"""

import math

from .rules import final, judged


def block(chain):
    rows, r = [], [(1.0, 0.0)]  # what stands at each position, and r_i with its error
    for i, d in enumerate(chain.drafts):
        p = chain.p(i)
        if not chain.readable(p, d):
            chain.bonus = None
            break  # the draft ends here
        known = judged(chain, i, d, p)
        rows.append((p, known))
        r.append(next_r(*r[-1], d, p, known))
        if r[-1][0] == 0:
            break  # every later r and h is 0
    last = len(r) - 1
    if last == len(chain.drafts) and r[last][0] > 0:
        chain.pair_behind(last)  # looked at, and flagged if it is no law, before the way back
    tau = next(
        (
            i
            for i in range(last, 0, -1)
            if r[i][0] > 0 and chain.chance.below(i - 1, *chance_of(chain, i, last, rows, r))
        ),
        0,
    )
    for d, (p, _) in zip(chain.drafts[:tau], rows):
        chain.take(d, p)
    if tau == last and r[tau][0] > 0:
        return chain.end()
    p, known = rows[tau]
    return chain.draw(p, () if known is None else final(p, *known, *r[tau]))


def next_r(r, err, d, p, known):
    if known is None:  # greedy
        return (r, err) if d == p.fallback else (0.0, 0.0)
    pair, mix = known
    pi, pi_err = mix.law(pair)
    if not (pair.q[d] > 0 and pi[d] > 0):
        return 0.0, 0.0
    x = r * pi[d] / pair.q[d]
    x_err = (err * pi[d] + r * pi_err[d] + x * pair.q_err[d]) / pair.q[d]
    return min(1.0, x), 0.0 if x - x_err >= 1 else x_err


def chance_of(chain, i, last, rows, r):
    """(h_i, its error)."""
    at, err = r[i]
    if i == last:
        return at, err
    if at == 1 and err == 0:
        return 1.0, 0.0  # whatever s_i is: 0 / 0 comes before an r_{i+1} of 1
    p, known = rows[i]
    # Greedy, the draft itself in place of q: where it is p's token, s_i = (r_i - 1)+ = 0; else s_i = r_i, r_{i+1} = 0.
    if known is None:
        return (at, err) if r[i + 1][0] == 0 else (float(at == 1), math.inf if at + err >= 1 else 0.0)
    if not p.valid:
        return at, err  # nothing can be taken away from what is no law
    pair, mix = known
    w, w_err = mix.leftover(pair, at, err)
    s, s_err, below = w.sum(), w_err.sum(), w.sum() + 1 - at
    return (s / below, ((1 - at) * s_err + s * err) / below**2) if below > 0 else (1.0, math.inf)
