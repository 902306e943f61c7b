# SPDX-License-Identifier: Apache-2.0
"""Ordinary inputs of an op, and invalid ones that it must survive."""

import math

import numpy as np
import torch
from support.plain import Plain, inverse_cdf

KINDS = ["dirichlet", "peaked", "near", "identical", "disjoint", "zeros", "onehot"]

# The arguments of verify_chain that have one entry per request: those of chain(), with seeds in place of uniforms.
PER_REQUEST = (
    "target_logits",
    "draft_logits",
    "draft_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "top_n_sigma",
    "draft_temperature",
    "draft_top_k",
    "draft_top_p",
    "draft_min_p",
    "draft_top_n_sigma",
    "seed",
    "offset",
)


def logs(p):
    with np.errstate(divide="ignore"):
        return np.log(p)


def row_pair(kind, V, rng):
    """Return the logits of one target and one draft row."""
    p = logs(rng.dirichlet(np.full(V, 0.5)).clip(1e-30))
    q = logs(rng.dirichlet(np.full(V, 0.5)).clip(1e-30))
    even = np.arange(V) % 2 == 0
    if kind == "peaked":
        p, q = 6 * rng.standard_normal(V), 6 * rng.standard_normal(V)
    elif kind == "near":
        q = p + 0.3 * rng.standard_normal(V)
    elif kind == "sharp":  # near, with most of the mass on a few ids whatever the vocabulary; only on request
        p = 5 * rng.standard_normal(V)
        q = p + 1.5 * rng.standard_normal(V)
    elif kind == "identical":
        q = p.copy()
    elif kind == "disjoint" and V > 1:
        p, q = np.where(even, p, -math.inf), np.where(even, -math.inf, q)
    elif kind == "zeros":
        p, q = (np.where(rng.random(V) < 0.4, -math.inf, x) for x in (p, q))
        p[rng.integers(V)] = q[rng.integers(V)] = 0.0
    elif kind == "onehot":
        p, q = (np.where(np.arange(V) == rng.integers(V), x, -math.inf) for x in (p, q))
    return p + 5 * rng.standard_normal(), q + 5 * rng.standard_normal()


def rows_pair(seed, N, V, Vq=None, dtype=torch.float32, draft_dtype=None, kinds=KINDS):
    """Return [N, V] and [N, Vq] logits, whose kinds take turns."""
    rng = np.random.default_rng([seed, N, V])
    wide = max(V, Vq or V)
    pairs = [row_pair(kinds[i % len(kinds)], wide, rng) for i in range(N)]
    p = torch.tensor(np.array([a for a, _ in pairs]).reshape(N, wide))[:, :V]
    q = torch.tensor(np.array([b for _, b in pairs]).reshape(N, wide))[:, : Vq or V]
    for rows in (p, q):  # the cut may have removed every finite entry
        rows[(rows == -math.inf).all(-1)] = 0.0
    return p.to(dtype).contiguous(), q.to(draft_dtype or dtype).contiguous()


def parameters(seed, n):
    """Return random per-request sampling parameters, each on or off. About one request in eight is greedy."""
    rng = np.random.default_rng([seed, n])

    def choose(values, dtype):
        return torch.tensor(rng.choice(values, n), dtype=dtype)

    return {
        "temperature": choose([0.0, 0.3, 0.7, 0.9, 1.0, 1.0, 1.3, 2.0], torch.float32),
        "top_k": choose([0, -1, 1, 2, 3, 20, 10**6], torch.int64),
        "top_p": choose([1.0, 1.0, 0.95, 0.8, 0.5, 0.05], torch.float32),
        "min_p": choose([0.0, 0.0, 0.02, 0.1, 1.0], torch.float32),
        "top_n_sigma": choose([0.0, 0.0, 0.0, 0.5, 1.0, 2.0], torch.float32),
    }


def strided(t, pad=3, shift=0):
    """Return the same rows with `pad` entries of NaN after each, the first one `shift` elements into its storage."""
    sizes = (*t.shape[:-1], t.shape[-1] + pad)
    wide = torch.full((math.prod(sizes) + shift,), math.nan, dtype=t.dtype)[shift:].view(sizes)
    wide[..., : t.shape[-1]] = t
    return wide[..., : t.shape[-1]]


def chain(
    seed,
    B,
    G,
    V,
    Vq=None,
    dtype=torch.float32,
    draft_dtype=None,
    filtered=False,
    one_hot=False,
    dirty=True,
    kinds=KINDS,
):
    """Return keyword arguments of verify_chain.

    Drafts are drawn from the draft's distribution. With `dirty`, one id in eight is out of range.
    """
    p, _ = rows_pair(seed, B * (G + 1), V, dtype=dtype, kinds=kinds)
    pairs = rows_pair(seed + 1, B * G, V, Vq, dtype, draft_dtype, kinds)
    p, q = p.reshape(B, G + 1, V), pairs[1].reshape(B, G, Vq or V)
    p[:, :G] = pairs[0].reshape(B, G, V)
    args = {"target_logits": p, "draft_logits": None if one_hot else q}
    draft_params = {}
    if filtered:
        args |= parameters(seed, B)
        if not one_hot:
            draft_params = parameters(seed + 2, B)
            args |= {"draft_" + name: value for name, value in draft_params.items()}
    rng = torch.Generator().manual_seed(seed)
    laws = Plain().laws(q, **draft_params)
    drafts = inverse_cdf(
        laws.reshape(B * G, laws.shape[-1]), torch.rand(B * G, generator=rng, dtype=torch.float64)
    ).reshape(B, G)
    if one_hot:  # one-hot drafts are guesses: half of them are the target's argmax
        best = p[:, :G].argmax(-1)
        drafts = torch.where(torch.rand(B, G, generator=rng) < 0.5, best, drafts.clamp(max=V - 1))
    if dirty:
        outside = torch.randint(0, 16, (B, G), generator=rng)
        drafts[outside == 0] = -1
        drafts[outside == 1] = max(V, Vq or V) + 5
    args["draft_tokens"] = drafts
    args["uniforms"] = torch.rand(B, G + 1, generator=rng, dtype=torch.float64)
    return args


def bad_rows(V):
    """Return [(invalid row, the token that it must give: the argmax of its finite entries, or 0 if there is none)]."""
    nan, inf = math.nan, math.inf
    base = torch.linspace(-1, 1, V)
    out = []
    for poison in (nan, inf):
        for at in {0, V // 2, V - 1}:
            row = base.clone()
            row[at] = poison
            finite = torch.where(row.isfinite(), row, -inf)
            out.append((row, int(finite.argmax()) if row.isfinite().any() else 0))
    out.append((torch.full((V,), -inf), 0))
    out.append((torch.full((V,), nan), 0))
    return out
