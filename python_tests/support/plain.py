# SPDX-License-Identifier: Apache-2.0
"""Verification in plain vectorised torch (float64, dense valid rows): the base class of the mutants.

Each step of the rule is a small method, so that a mutant overrides one.
"""

import math
from typing import NamedTuple

import torch

from specdec_kernels.reference import uniforms as philox_uniforms
from specdec_kernels.reference.rows import SAMPLING_FIELDS, rows_of


class Out(NamedTuple):
    tokens: torch.Tensor
    num_accepted: torch.Tensor
    logprobs: torch.Tensor
    status: torch.Tensor


def column(value, off):
    """Return a parameter as a float32-rounded float64 [B or 1, 1, 1]."""
    t = torch.as_tensor(off if value is None else value)
    return t.float().double().reshape(-1, 1, 1)


def inverse_cdf(w, v):
    """Return the first id with w > 0 and cumsum > v * total; if there is none, the last id with w > 0.

    w [B, V], v [B].
    """
    cum = w.cumsum(-1)
    hit = (w > 0) & (cum > (v * cum[:, -1])[:, None])
    ids = torch.arange(w.shape[-1])
    first = torch.where(hit, ids, w.shape[-1]).amin(-1)
    last = torch.where(w > 0, ids, -1).amax(-1)
    return torch.where(hit.any(-1), first, last)


class Plain:
    def deviation(self, z):
        """Return the standard deviation of the finite entries of each row."""
        finite = z > -math.inf
        n, e = finite.sum(-1, keepdim=True), z.where(finite, 0.0)
        mean = e.sum(-1, keepdim=True) / n
        return (((e - mean).where(finite, 0.0) ** 2).sum(-1, keepdim=True) / n).sqrt()

    def cutoffs(self, z, temperature, top_k, top_p, min_p, top_n_sigma):
        """Return the mask [B, R, V] of the entries of z that are kept."""
        t, k, nucleus, floor = column(temperature, 1.0), column(top_k, 0), column(top_p, 1.0), column(min_p, 0.0)
        kept, n = z > -math.inf, column(top_n_sigma, 0.0)
        least = (z.amax(-1, keepdim=True) - n * self.deviation(z)).float().double()
        kept = kept & ((n == 0) | (z >= least))
        kept = kept & (z >= (z.amax(-1, keepdim=True) + t * floor.log()).float().double())
        if (k > 0).any():
            descending = z.sort(-1, descending=True).values
            kth = torch.where((k > 0) & (k < z.shape[-1]), k, z.shape[-1]).long().expand(len(z), z.shape[1], 1) - 1
            kept = kept & self.within_top_k(z, descending.gather(-1, kth))
        if (nucleus < 1).any():
            masked = torch.where(kept, z, -math.inf)
            descending = masked.sort(-1, descending=True).values
            cum = ((descending - descending[..., :1]) / torch.where(t > 0, t, 1.0)).exp().cumsum(-1)
            enough = cum >= nucleus * cum[..., -1:]
            cutoff = descending.gather(-1, enough.double().argmax(-1, keepdim=True))
            kept = kept & ((z >= cutoff) | (nucleus >= 1))
        return kept

    def within_top_k(self, z, kth):
        return z >= kth

    def argmax(self, z):
        return z.argmax(-1)  # the lowest id of a tie

    def laws(self, logits, temperature=None, top_k=None, top_p=None, min_p=None, top_n_sigma=None):
        z = logits.double()
        t = column(temperature, 1.0)
        scale = (1 / torch.where(t > 0, t, 1.0)).float().double()
        kept = self.cutoffs(z, temperature, top_k, top_p, min_p, top_n_sigma)
        p = torch.softmax(torch.where(kept, (z - z.amax(-1, keepdim=True)) * scale, -math.inf), -1)
        if (t == 0).any():
            greedy = torch.nn.functional.one_hot(self.argmax(z), z.shape[-1]).double()
            p = torch.where(t == 0, greedy, p)
        return p

    def draft_laws(self, logits, *params):
        return self.laws(logits, *params)

    def uniforms(self, seed, offset, gamma):
        return torch.cat([philox_uniforms(seed, offset, gamma, 0), philox_uniforms(seed, offset, 1, 1)], 1)

    def accept(self, u, q, p):
        return (q > 0) & (q <= 1 + 1e-3) & (u * q.clamp(max=1) < p)

    def accepted_count(self, accepted):
        return accepted.long().cumprod(-1).sum(-1)

    def final_row(self, n, gamma):
        return n

    def final_uniform(self, uniforms, n):
        return uniforms[:, -1]

    def residual(self, p, q):
        return (p - q).clamp(min=0)

    def draw(self, w, v):
        return inverse_cdf(w, v)

    def ended(self, drafts, n, vocab):
        """Return whether the draft itself ended at n, so that nothing is subtracted from p."""
        at = drafts.gather(1, n.clamp(max=drafts.shape[1] - 1)[:, None])[:, 0] if drafts.shape[1] else n
        return (n == drafts.shape[1]) | (at < 0) | (at >= vocab)

    def __call__(self, target, draft_tokens, draft=None, *, seed=None, offset=None, uniforms=None):
        target, draft = rows_of(target), rows_of(draft)
        B, gamma = draft_tokens.shape
        vocab, rows = target.logits.shape[-1], torch.arange(B)
        P = self.laws(target.logits, *target[SAMPLING_FIELDS])
        if draft is None:
            Q = torch.nn.functional.one_hot(draft_tokens.clamp(0, vocab - 1), vocab).double()
        else:
            Q = self.draft_laws(draft.logits[:, :gamma], *draft[SAMPLING_FIELDS])
        wide = max(vocab, Q.shape[-1])
        P_wide, Q_wide = (torch.nn.functional.pad(x, (0, wide - x.shape[-1])) for x in (P, Q))
        if uniforms is None:
            uniforms = self.uniforms(seed, offset, gamma)

        inside = (draft_tokens >= 0) & (draft_tokens < wide)
        ids = draft_tokens.clamp(0, wide - 1)[..., None]
        p_d, q_d = P_wide[:, :gamma].gather(-1, ids)[..., 0], Q_wide.gather(-1, ids)[..., 0]
        n = self.accepted_count(inside & self.accept(uniforms[:, :gamma], q_d, p_d))
        p, v = P[rows, self.final_row(n, gamma)], self.final_uniform(uniforms, n)
        q = Q_wide[rows, n.clamp(max=gamma - 1), :vocab] if gamma else torch.zeros_like(p)
        w = torch.where(self.ended(draft_tokens, n, wide)[:, None], p, self.residual(p, q))
        empty = ~(w.sum(-1) > 0)
        final = self.draw(torch.where(empty[:, None], p, w), v)

        tokens = torch.cat([draft_tokens, torch.full((B, 1), -1)], 1)
        tokens[rows, n] = final
        tokens[torch.arange(gamma + 1)[None] > n[:, None]] = -1
        logprobs = P.gather(-1, tokens.clamp(min=0)[..., None])[..., 0].log().masked_fill(tokens < 0, 0.0)
        at = q_d.gather(1, n.clamp(max=gamma - 1)[:, None])[:, 0] if gamma else torch.ones(B)
        bad_q = ~self.ended(draft_tokens, n, wide) & ~((at > 0) & (at <= 1 + 1e-3))
        return Out(tokens, n.int(), logprobs.float(), (empty * 2 + bad_q * 4).int())


def plain_sample(logits, seed, offset, slot, **params):
    """Draw drafted tokens [N] from rows [N, V], each with one random number of domain 2."""
    q = Plain().laws(logits[:, None], **params)[:, 0]
    return inverse_cdf(q, philox_uniforms(seed, offset, slot + 1, 2)[:, slot])
