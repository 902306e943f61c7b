# SPDX-License-Identifier: Apache-2.0
"""The rules' distributions computed a second time, token by token in plain Python, and rows to test them on."""

import math

import numpy as np
import torch
from support.tree_laws import random_rows, with_zeros

# Parameters at which the rows below defer at some prefixes and keep at others (`test_the_parameters_are_telling`).
ALPHAS = {
    "exact": (),
    "chow": (0.45,),
    "chow_log": (0.8,),
    "diff": (0.1,),
    "diff_log": (0.05,),
    "opt": (0.3,),
    "opt_log": (0.3,),
    "token_v1": (0.35,),
    "token_v2": (0.3,),
    "token_v3": (0.6,),
    "lossy": (0.3,),
    "ensemble": (0.4,),
    "lenience": (0.6,),
    "typical": (0.3, 0.6),
    "relaxed": (2, 0.3),
    "synthetic": (0.7,),
    "thresholds": (0.6, 0.8),
}
LAWS = [*ALPHAS][:12]  # these replace p by a distribution pi
OTHERS = [*ALPHAS][12:]
ROW_RULES, TOKEN_RULES = [*ALPHAS][1:7], [*ALPHAS][7:10]


def entropy(row):
    return -sum(x * math.log(x) for x in row if x > 0)


def emitted(rule, p, q, alpha, p1=None, q1=None):
    """Return the distribution of one emitted token whose draft is drawn from q, id by id from the rule's definition."""
    p, q, p1, q1 = ([float(x) for x in row] for row in (p, q, p if p1 is None else p1, q if q1 is None else q1))
    ids = range(len(p))
    tv = sum(max(p[v] - q[v], 0.0) for v in ids)
    if rule == "exact":
        return np.array(p)
    if rule in ROW_RULES:
        (a,) = alpha
        defers = {
            "chow": lambda: max(q1) < 1 - a,
            "chow_log": lambda: entropy(q1) > a,
            "diff": lambda: max(q1) < max(p1) - a,
            "diff_log": lambda: entropy(q1) > entropy(p1) + a,
            "opt": lambda: max(q1) < max(p1) - a * tv,
            "opt_log": lambda: entropy(q1) > entropy(p1) + a * tv,
        }[rule]()
        return np.array(p if defers else q)
    if rule in TOKEN_RULES:
        (a,) = alpha
        rejects = {
            "token_v1": lambda v: q1[v] < max(p1) - a,
            "token_v2": lambda v: p1[v] < max(p1) - a,
            "token_v3": lambda v: p1[v] < (1 - a) * max(p1),
        }[rule]
        eta = sum(q[v] for v in ids if rejects(v))
        return np.array([q[v] * (not rejects(v)) + p[v] * eta for v in ids])
    if rule == "ensemble":
        return np.array([alpha[0] * p[v] + (1 - alpha[0]) * q[v] for v in ids])
    if rule == "lossy":  # beta by bisection on sum pi = 1
        most = 1 / (1 - alpha[0])

        def law(t):
            return [max(min(q[v], most * p[v]), t * p[v]) for v in ids]

        low, high = 0.0, most
        for _ in range(200):
            t = (low + high) / 2
            low, high = (t, high) if sum(law(t)) < sum(q) else (low, t)
        return np.array(law(high))
    if rule == "lenience":
        kept = [min(q[v], p[v] / alpha[0]) for v in ids]
        rest = [max(p[v] - q[v], 0.0) / tv if tv > 0 else p[v] for v in ids]
        return np.array([kept[v] + (1 - sum(kept)) * rest[v] for v in ids])
    if rule == "thresholds":
        single, acc = alpha
        out = np.zeros(len(p))
        for d in ids:
            chance = 1.0 if p[d] >= single else min(1.0, p[d] / acc)
            out[d] += q[d] * chance
            if chance < 1:
                out += q[d] * (1 - chance) * np.array([p[v] * (v != d) / (1 - p[d]) for v in ids])
        return out
    accepted = {
        "typical": lambda v, eps, delta: float(p[v] > min(eps, delta * math.exp(-entropy(p)))),
        "relaxed": lambda v, n, delta: float(sum(x > p1[v] for x in p1) < n and p1[v] >= max(p1) - delta),
        "synthetic": lambda v, rate: rate,
    }[rule]
    kept = [q[v] * accepted(v, *alpha) for v in ids]
    return np.array([kept[v] + (1 - sum(kept)) * p[v] for v in ids])


def tempered(row, exponent, least=0.0):
    """Return the rows at temperature 1 / exponent, without ids below `least`.

    If `row` is the softmax at T = 1, these are the distributions that a request samples from.
    """

    def law(prefix):
        r = row(prefix) ** exponent
        r = np.where(r / r.sum() >= least, r, 0.0)
        return r / r.sum()

    return law


def rows_of(kind, vocab):
    """Return (p, q, p1, q1), functions of the prefix."""
    p1, q1 = random_rows(21, vocab), random_rows(22, vocab)
    if kind == "zeros":
        p1, q1 = with_zeros(p1, 0), with_zeros(q1, 1)
    if kind == "tempered":
        return tempered(p1, 1.6, 0.05), tempered(q1, 0.6), p1, q1
    if kind == "equal":
        return p1, p1, p1, p1
    if kind == "one-hot":
        q1 = lambda prefix: (sum(prefix) + len(prefix)) % vocab
    return p1, q1, p1, q1


def chain_args(seed, B=120, G=3, V=9, end_row=True):
    """Return arguments of verify_chain whose drafts are drawn from rows near the target's."""
    rng = torch.Generator().manual_seed(seed)
    p = 2 * torch.randn(B, G + 1, V, generator=rng)
    q = p + 0.7 * torch.randn(B, G + 1, V, generator=rng)
    drafts = torch.multinomial(q[:, :G].reshape(B * G, V).softmax(-1), 1, generator=rng).reshape(B, G)
    q = q if end_row else q[:, :G]
    return dict(
        target=p, draft_tokens=drafts, draft=q, uniforms=torch.rand(B, G + 1, generator=rng, dtype=torch.float64)
    )


def assert_equal(out, want, what=""):
    for name, got, expected in zip(out._fields, out, want):
        if name != "margin":
            assert torch.equal(got.nan_to_num(9.0), expected.nan_to_num(9.0)), (what, name)
