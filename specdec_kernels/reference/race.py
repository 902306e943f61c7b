# SPDX-License-Identifier: Apache-2.0
"""The race: the token of a distribution as a function of its row, a seed and a position (Gumbel-max, shared noise).

u_t(x) is one number per (seed, position t, token x), E_t(x) = -ln u_t(x), and the token is argmin_x E_t(x) / p(x). Here
it is argmax_x (ln p(x) - ln E_t(x)), which is the same.
"""

import numpy as np
import torch

from ..registry import DOMAIN_NOISE
from .uniforms import uniforms


def noise_of(seed, position, n):
    """Return the Gumbel noise -ln E_t(x) of the tokens x = 0 .. n-1 at position t, [n] float64."""
    seed, position = (torch.tensor([x], dtype=torch.int64, device="cpu") for x in (seed, position))
    u = (np.floor(uniforms(seed, position, n, DOMAIN_NOISE)[0].numpy() * 2.0**52) + 0.5) * 2.0**-52
    return -np.log(-np.log(u))


def keys_of(p, log_p, seed, position):
    """Return the keys ln p(x) - ln E_t(x) of a row, [V]; -inf where p is 0. log_p: ln p; None: it is computed from
    p."""
    with np.errstate(divide="ignore"):
        weights = np.log(p) if log_p is None else log_p
    return np.where(weights > -np.inf, weights + noise_of(seed, position, len(weights)), -np.inf)


def ranked(keys):
    """Return the ids with mass, by falling key: the winner first. Equal keys: the lowest id first."""
    order = np.argsort(-keys, kind="stable")
    return order[keys[order] > -np.inf]


def of_tests(op, method, seed, offset, uniforms):
    """Return (seed, offset, uniforms) for a method's tests. A race has no tests, so all three are None."""
    if method != "race":
        return seed, offset, uniforms
    if uniforms is not None:
        raise ValueError(f"{op}: uniforms must be None for a race, got a tensor")
    return None, None, None


def request_noise(b, B, seed, offset, keys=None):
    """Return a function (row, after) -> (seed, position), for the token `after` tokens after request b's first. Return
    None without a seed.

    seed, offset: [B] or [1]. Without an offset each row has its own key, keys[row]. Positions are int64 and wrap
    around."""
    if seed is None:
        return None
    if offset is None:
        return lambda row, after: (int(keys[row]), 0)
    seed, offset = (x.expand(B)[b] for x in (seed, offset))
    return lambda row, after: (int(seed), int(offset + after))


def race(chain):
    """Verify a chain: emit the winner of each row, up to and including the first that was not drafted."""
    for i, d in enumerate([*chain.drafts, None]):
        if d is None and chain.bonus is not None:
            break
        p = chain.p(i)
        if not p.valid or not (p.p > 0).any():
            return chain.draw(p)
        y = p.fallback if p.greedy else chain.chance.race(p, chain.noise(i, i))
        chain.emit(y, p.log(y))
        if y != d:
            return chain
    return chain.end()
