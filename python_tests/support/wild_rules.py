# SPDX-License-Identifier: Apache-2.0
"""Wrong verifiers and drafters, which specdec_kernels.testing must find with its own cases.

wrong_rules.py has the rules of docs/wrong_rules.md.
"""

import torch
from support.plain import Plain, inverse_cdf, plain_sample

import specdec_kernels as sk
from specdec_kernels.reference import uniforms


def by(verify, **how):
    """Return a verifier of steps (specdec_kernels.testing) that calls `verify`, which is or replaces verify_chain."""

    def go(step):
        draft = None if step.one_hot else step.draft_logits
        rng = dict(seed=step.seed % 1009, offset=step.seed // 1009)
        return verify(step.target_logits, step.draft_tokens, draft, **rng, **how).tokens

    return go


right = by(sk.verify_chain)
block = by(sk.verify_chain, method="block")


class ResidualIsP(Plain):
    """A rule that draws from p after a rejected one-hot draft d, without removing d."""

    def residual(self, p, q):
        return p


class OneUniformTwice(Plain):
    """A rule whose final draw reuses the uniform of the test that rejected."""

    def final_uniform(self, uniforms, n):
        return uniforms.gather(1, n.clamp(max=uniforms.shape[1] - 1)[:, None])[:, 0]


class ZeroAccepts(Plain):
    """A rule that accepts if u q <= p, so also if p(d) = 0 and u q is 0. u has 4 bits, so that this occurs often."""

    def accept(self, u, q, p):
        return (u * 16).floor() / 16 * q <= p


def cut(step, at):
    """Apply the right rule to drafts that are cut at the first position where `at` is true."""
    ended = at.long().cumsum(1) > 0
    return right(step._replace(draft_tokens=step.draft_tokens.masked_fill(ended, -1)))


def of_drafts(rows, step):
    return rows[:, : step.draft_tokens.shape[1]].gather(2, step.draft_tokens[..., None])[..., 0]


def cut_where_forbidden(step):
    """Cut a draft at an id with target probability 0, and verify it as if it were shorter."""
    return cut(step, of_drafts(step.target_probs, step) == 0)


def cut_by_own_probability(step):
    """Cut a draft at a token with small q, so that the cut depends on the drawn token."""
    return cut(step, of_drafts(step.draft_probs, step) < 0.25)


def two_largest(step):
    """Accept the two largest logits if z2 / z1 > .9, which is not a function of the distribution."""
    z = step.target_logits[:, :-1]
    best = z.topk(2).values
    near = (of_drafts(z, step) >= best[..., 1]) & (best[..., 1] / best[..., 0] > 0.9)
    tokens = right(step)
    row, i = torch.arange(len(tokens)), (tokens >= 0).sum(1) - 1  # the position at which it stopped
    again = near[row, i.clamp(max=near.shape[1] - 1)] & (i < near.shape[1])
    tokens[row[again], i[again]] = step.draft_tokens[row[again], i[again]]
    return tokens


# ---- drafters: the reported q is that of the step's draft logits, whatever drafts are drawn from ---------------------


def honest(logits, seed, position):
    return plain_sample(logits, seed % 1009, seed // 1009, position)


def at_another_temperature(logits, seed, position):
    return honest(logits / 0.9, seed, position)


def in_bfloat16(logits, seed, position):
    """Draw from a CDF with bfloat16 edges, while the reported q is float32."""
    edges = logits.softmax(-1).cumsum(-1).bfloat16().double()
    w = edges.diff(prepend=torch.zeros(len(logits), 1, dtype=torch.float64))
    return inverse_cdf(w, uniforms(seed % 1009, seed // 1009, position + 1, sk.DOMAIN_DRAFT)[:, position])


def numbers_of_the_final_draw(logits, seed, position):
    """Draw the first draft with the uniform of the verification's final draw."""
    if position:
        return honest(logits, seed, position)
    return inverse_cdf(logits.double().softmax(-1), uniforms(seed % 1009, seed // 1009, 1, sk.DOMAIN_FINAL)[:, 0])
