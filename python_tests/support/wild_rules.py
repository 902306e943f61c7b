# SPDX-License-Identifier: Apache-2.0
"""Wrong verification rules that were seen in engines and papers, for specdec_kernels.testing to find."""

import numpy as np
import torch
from support.plain import Plain, inverse_cdf, plain_sample

import specdec_kernels as sk
from specdec_kernels import testing
from specdec_kernels.reference import uniforms


def by(verify, **how):
    """Return verify_chain as a verifier of steps."""

    def go(step):
        draft = None if step.one_hot else step.draft_logits
        rng = dict(seed=step.seed % 1009, offset=step.seed // 1009)
        return verify(step.target_logits, step.draft_tokens, draft, **rng, **how).tokens

    return go


right = by(sk.verify_chain)
block = by(sk.verify_chain, method="block")


class ResidualIsP(Plain):
    """A one-hot draft is accepted with probability p(d), but the final draw is from p with d in it."""

    def residual(self, p, q):
        return p


class OneUniformTwice(Plain):
    """The final draw reuses the number of the rejecting test."""

    def final_uniform(self, uniforms, n):
        return uniforms.gather(1, n.clamp(max=uniforms.shape[1] - 1)[:, None])[:, 0]


class ZeroAccepts(Plain):
    """Accepts if u q <= p: if p(d) = 0 and u q rounds to 0, the draft is accepted. u has 4 bits, so that this shows."""

    def accept(self, u, q, p):
        return (u * 16).floor() / 16 * q <= p


def cut(step, at):
    """Return the right rule after drafts were cut at the first position where `at` holds."""
    ended = at.long().cumsum(1) > 0
    return right(step._replace(draft_tokens=step.draft_tokens.masked_fill(ended, -1)))


def of_drafts(rows, step):
    return rows[:, : step.draft_tokens.shape[1]].gather(2, step.draft_tokens[..., None])[..., 0]


def cut_where_forbidden(step):
    """A draft is cut at an id that the target rules out, and verified as if it were shorter."""
    return cut(step, of_drafts(step.target_probs, step) == 0)


def cut_by_own_probability(step):
    """A draft is cut at a token with small q, so the cut depends on the drawn token."""
    return cut(step, of_drafts(step.draft_probs, step) < 0.25)


def two_largest(step):
    """Accepts the two largest logits if z2 / z1 > .9, which is not a function of the distribution."""
    z = step.target_logits[:, :-1]
    best = z.topk(2).values
    near = (of_drafts(z, step) >= best[..., 1]) & (best[..., 1] / best[..., 0] > 0.9)
    tokens = right(step)
    row, i = torch.arange(len(tokens)), (tokens >= 0).sum(1) - 1  # the position at which it stopped
    again = near[row, i.clamp(max=near.shape[1] - 1)] & (i < near.shape[1])
    tokens[row[again], i[again]] = step.draft_tokens[row[again], i[again]]
    return tokens


def uncapped_block(step):
    """The "hierarchical" block verification as its authors coded it. The last test uses the ratio of all drafts, which
    the earlier tests cap at 1 after each draft."""
    p, q = step.target_probs.double(), step.draft_probs.double()
    n, G = step.draft_tokens.shape
    u = torch.from_numpy(np.random.default_rng(int(step.seed[0])).random((n, G + 1)))
    ratio = of_drafts(p, step) / of_drafts(q, step)
    r, whole, tau = torch.ones(n, dtype=torch.float64), ratio.prod(1), torch.zeros(n, dtype=torch.int64)
    weights = [(p[:, 0] - q[:, 0]).clamp(min=0)]
    for i in range(1, G + 1):
        r = (r * ratio[:, i - 1]).clamp(max=1)
        h = whole.clamp(max=1)
        if i < G:
            weights.append((r[:, None] * p[:, i] - q[:, i]).clamp(min=0))
            s = weights[i].sum(1)
            h = torch.where(s + 1 - r > 0, s / (s + 1 - r), 1.0)
        tau = torch.where(u[:, i - 1] < h, i, tau)
    w = torch.stack([*weights, p[:, G]], 1)[torch.arange(n), tau]
    w = torch.where(w.sum(1, keepdim=True) > 1e-12, w, p[torch.arange(n), tau])
    tokens = torch.cat((step.draft_tokens, step.draft_tokens[:, :1]), 1)
    tokens[torch.arange(n), tau] = inverse_cdf(w, u[:, G])
    return tokens.masked_fill(torch.arange(G + 1) > tau[:, None], -1)


# ---- drafters: what is reported is what the step holds ---------------------------------------------------------------


def honest(logits, seed, position):
    return plain_sample(logits, seed % 1009, seed // 1009, position)


def at_another_temperature(logits, seed, position):
    return honest(logits / 0.9, seed, position)


def in_bfloat16(logits, seed, position):
    """The reported q is float32, but the CDF that the draft is drawn from has bfloat16 edges."""
    edges = logits.softmax(-1).cumsum(-1).bfloat16().double()
    w = edges.diff(prepend=torch.zeros(len(logits), 1, dtype=torch.float64))
    return inverse_cdf(w, uniforms(seed % 1009, seed // 1009, position + 1, sk.DOMAIN_DRAFT)[:, position])


def numbers_of_the_final_draw(logits, seed, position):
    """The first draft is drawn with the number of the verification's last draw."""
    if position:
        return honest(logits, seed, position)
    return inverse_cdf(logits.double().softmax(-1), uniforms(seed % 1009, seed // 1009, 1, sk.DOMAIN_FINAL)[:, 0])


# ---- one token, from siblings or under a coin ------------------------------------------------------------------------


def siblings_against_one_p(p, q):
    """Two siblings are tested against the same p, and the residual is computed once at the end."""

    def draw(seeds):
        rng = np.random.default_rng(int(seeds[0]))
        drafts, u = rng.choice(len(p), (2, len(seeds)), p=q), rng.random((2, len(seeds)))
        kept = u * q[drafts] < p[drafts]
        rest = np.maximum(p - q, 0)
        final = rng.choice(len(p), len(seeds), p=rest / rest.sum())
        return np.where(kept[0], drafts[0], np.where(kept[1], drafts[1], final))

    return draw


def few_siblings_recorded(V, tried, recorded):
    """Siblings 0 .. tried-1 are tested against a uniform p, but only the first `recorded` are removed from the
    residual."""

    def draw(seeds):
        rng = np.random.default_rng(int(seeds[0]))
        coin = rng.integers(V, size=len(seeds))
        return np.where(coin < tried, coin, rng.integers(recorded, V, len(seeds)))

    return draw


def another_coin_for_the_residual(p, cut, q):
    """A random coin switches a filter on for each token. The coin is tossed again for the residual."""

    def draw(seeds):
        rng, n = np.random.default_rng(int(seeds[0])), len(seeds)
        rows, d = np.stack([p, cut])[rng.integers(2, size=(2, n))], rng.choice(len(q), n, p=q)
        kept = rng.random(n) * q[d] < rows[0, np.arange(n), d]
        rest = np.maximum(rows[1] - q, 0)
        edges = (rest / rest.sum(1, keepdims=True)).cumsum(1)
        return np.where(kept, d, (edges <= rng.random((n, 1))).sum(1))

    return draw


# ---- penalties -------------------------------------------------------------------------------------------------------


def presence(row, tokens):
    return row - 1.5 * np.bincount(tokens, minlength=len(row)).clip(max=1)


PENALISED = testing.Case(
    "presence penalty",
    "penalties that do not grow with the window",
    target=lambda tokens: np.log([0.5, 0.3, 0.2]),
    draft=lambda tokens: 0,
    length=2,
    transform=lambda row, tokens: testing.softmax(presence(row, tokens)),
)


def right_penalties(step):
    return right(step._replace(target_logits=step.target_probs.log()))


def committed_counts(step):
    """Every row has the penalties of the tokens before the window: here none."""
    return right(step)
