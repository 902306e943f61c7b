# SPDX-License-Identifier: Apache-2.0
"""Token-level speculative sampling (Leviathan et al. 2023, Algorithm 1; Chen et al. 2023, Algorithm 2), one request at a time."""

import math
from typing import NamedTuple

import numpy as np
import torch

from .accept import accepts
from .law import Q_MAX, Law, clean_q, draw, law_of_logits, law_of_probs, numpy_rows, ratio
from .residual import residual_weights
from .row_stats import stats_and_slack
from .uniforms import uniforms as philox_uniforms

INVALID_ROW, EMPTY_RESIDUAL, INVALID_DRAFT, INVALID_BONUS = 1, 2, 4, 8


class Verified(NamedTuple):
    tokens: torch.Tensor  # [B, G+1] int64
    num_accepted: torch.Tensor  # [B] int32
    logprobs: torch.Tensor  # [B, G+1] float64
    status: torch.Tensor  # [B] int32
    margin: torch.Tensor  # [B] float64: below 1 another answer is as right as this one


def walk(drafts, target, draft, vocab, draft_vocab, u, v, bonus):
    """One request: drafted ids, target(i) and draft(i) -> (Law, slack) (draft None: one-hot). Returns tokens, logprobs, status, margin."""
    tokens, logprobs, status, margin = [], [], 0, math.inf
    removed = -1  # what the final draw takes away from p: nothing yet
    for i, d in enumerate(drafts):
        if not 0 <= d < max(vocab, draft_vocab):
            break  # the draft ends here
        p, slack = target(i)
        margin = min(margin, slack)
        p_d = p.p[d] if d < vocab else 0.0
        if math.isnan(p_d) or not (p.valid or p.gathered):
            break
        if p.greedy:
            accepted = d == p.fallback
        else:
            q_d, q_err, removed = 1.0, 0.0, d
            if draft is not None:
                q, slack = draft(i)
                margin = min(margin, slack)
                q_d, q_err, removed = (q.p[d], q.err[d], q) if d < len(q.p) else (0.0, 0.0, q)
                if not (q.valid or q.gathered):
                    status |= INVALID_ROW | INVALID_DRAFT
            accepted = accepts(p_d, q_d, u[i])  # Algorithm 1: r_i <= p_i(x) / q_i(x)
            if 0 < q_d <= Q_MAX:
                p_err = p.err[d] if d < vocab else 0.0
                margin = min(margin, ratio(abs(u[i] * min(q_d, 1.0) - p_d), p_err + u[i] * q_err))
            else:
                status |= INVALID_DRAFT
        if not accepted:
            return finish(target(i), removed, v, tokens, logprobs, status, margin)
        tokens.append(d)
        logprobs.append(float(np.log(p_d)))
    else:
        if bonus is not None:
            status |= 0 if 0 <= bonus < vocab else INVALID_BONUS
            return tokens + [min(max(bonus, 0), vocab - 1)], logprobs + [math.nan], status, margin
    return finish(target(len(tokens)), -1, v, tokens, logprobs, status, margin)


def finish(row, removed, v, tokens, logprobs, status, margin):
    """The final token ~ norm((p - q)+), q a Law, a drafted id (one-hot), or -1 for a plain draw from p."""
    p, slack = row
    margin = min(margin, slack)
    if not p.valid or not (p.p > 0).any():  # the second: stats of another row
        return tokens + [p.fallback], logprobs + [math.nan], status | INVALID_ROW, margin
    if p.greedy:
        return tokens + [p.fallback], logprobs + [0.0], status, margin
    w, err = residual_weights(p.p, removed.p if isinstance(removed, Law) else removed), p.err.copy()
    if isinstance(removed, Law):
        n = min(len(w), len(removed.p))
        err[:n] += removed.err[:n]
        gap = -p.p.copy()
        gap[:n] += clean_q(removed.p[:n])
        err[gap > err] = 0.0  # far below zero, no rounding makes a weight of it
    elif removed >= 0 and removed < len(err):
        err[removed] = 0.0
    if w.sum() < 2 * err.sum():
        margin = 0.0  # whether anything is left is itself a matter of rounding
    if not 0 < w.sum() < math.inf:
        w, err, status = np.where(p.p > 0, p.p, 0.0), p.err, status | EMPTY_RESIDUAL
    x, near = draw(w, v, err)
    return tokens + [x], logprobs + [float(np.log(p.p[x]))], status, min(margin, near)


def side(rows, kind, stats, *params):
    """One side's rows as a function i -> (Law, slack)."""
    rows = numpy_rows(rows)
    if kind == "probs":
        return lambda i: (law_of_probs(rows[i]), math.inf)

    def law(i):
        if stats is not None:
            return law_of_logits(rows[i], stats[i].double().tolist()), math.inf
        (computed,), (slack,) = stats_and_slack(rows[i : i + 1], *params)
        return law_of_logits(rows[i], computed), slack

    return law


def verify_chain(target_logits, draft_tokens, draft_logits=None, *, cu_draft=None, max_draft=None, bonus_tokens=None,
                 temperature=None, top_k=None, top_p=None, min_p=None, target_stats=None, draft_stats=None,
                 draft_temperature=None, draft_top_k=None, draft_top_p=None, draft_min_p=None,
                 target_kind="logits", draft_kind="logits", method="token", rule="exact", alpha=None,
                 seed=None, offset=None, uniforms=None):
    if method != "token" or rule != "exact" or alpha is not None:
        raise ValueError(f"verify_chain: the reference has method 'token' and rule 'exact', got {method!r}, {rule!r}, {alpha!r}")
    dense = cu_draft is None
    B = len(draft_tokens) if dense else len(cu_draft) - 1
    G = draft_tokens.shape[1] if dense else max_draft
    starts = [0] * (B + 1) if dense else cu_draft.tolist()
    vocab = target_logits.shape[-1]
    draft_vocab = vocab if draft_logits is None else draft_logits.shape[-1]
    if uniforms is None and seed is not None:
        uniforms = torch.cat([philox_uniforms(seed, offset, G, 0), philox_uniforms(seed, offset, 1, 1)], 1)
    uniforms = np.zeros((B, G + 1)) if uniforms is None else numpy_rows(uniforms)

    def pick(value, b):  # this request's own parameter
        return value[b] if torch.is_tensor(value) and value.dim() else value

    def rows_of(t, b, extra):  # this request's rows of a dense or ragged tensor
        return None if t is None else t[b] if dense else t[starts[b] + extra * b : starts[b + 1] + extra * (b + 1)]

    out = Verified(torch.full((B, G + 1), -1), torch.zeros(B, dtype=torch.int32), torch.zeros(B, G + 1, dtype=torch.float64),
                   torch.zeros(B, dtype=torch.int32), torch.zeros(B, dtype=torch.float64))
    extra_p = int(bonus_tokens is None)
    extra_q = int(not dense and draft_logits is not None and len(draft_logits) != len(draft_tokens))
    for b in range(B):
        p_params = [pick(x, b) for x in (temperature, top_k, top_p, min_p)]
        q_params = [pick(x, b) for x in (draft_temperature, draft_top_k, draft_top_p, draft_min_p)]
        target = side(rows_of(target_logits, b, extra_p), target_kind, rows_of(target_stats, b, extra_p), *p_params)
        draft = None
        if draft_logits is not None:
            draft = side(rows_of(draft_logits, b, extra_q), draft_kind, rows_of(draft_stats, b, extra_q), *q_params)
        drafts = rows_of(draft_tokens, b, 0).tolist()
        bonus = None if bonus_tokens is None else int(bonus_tokens[b])
        tokens, logprobs, status, margin = walk(drafts, target, draft, vocab, draft_vocab, uniforms[b, :-1], uniforms[b, -1], bonus)
        out.tokens[b, : len(tokens)] = torch.tensor(tokens)
        out.logprobs[b, : len(tokens)] = torch.tensor(logprobs, dtype=torch.float64)
        out.num_accepted[b], out.status[b], out.margin[b] = len(tokens) - 1, status, margin
    return out
