# SPDX-License-Identifier: Apache-2.0
"""Verification of one drafted path per request, one request at a time; block.py has the block rule, rules/ what may
stand in place of p."""

import itertools
import math
from typing import NamedTuple

import numpy as np
import torch

from .block import block
from .chain import Chain
from .chance import Coins
from .law import law_of_logits, law_of_probs, numpy_rows, padded
from .row_stats import stats_and_slack
from .rules import judge, per_request
from .status import EMPTY_RESIDUAL, INVALID_BONUS, INVALID_DRAFT, INVALID_ROW
from .uniforms import given
from .uniforms import uniforms as philox_uniforms

__all__ = [
    "EMPTY_RESIDUAL",
    "INVALID_BONUS",
    "INVALID_DRAFT",
    "INVALID_ROW",
    "METHODS",
    "Verified",
    "side",
    "verify_chain",
]


class Verified(NamedTuple):
    tokens: torch.Tensor  # [B, G+1] int64
    num_accepted: torch.Tensor  # [B] int32
    logprobs: torch.Tensor  # [B, G+1] float64
    status: torch.Tensor  # [B] int32
    margin: torch.Tensor  # [B] float64: below 1 another answer is as right as this one


def token(chain):
    """Token-level speculative sampling (Leviathan et al. 2023, Algorithm 1; Chen et al. 2023, Algorithm 2)."""
    for i, d in enumerate(chain.drafts):
        p = chain.p(i)
        if not chain.readable(p, d):
            chain.bonus = None
            break  # the draft ends here
        accepted, rest = judge(chain, i, d, p)
        if not accepted:
            return chain.draw(p, rest)
        chain.take(d, p)
    return chain.end()


METHODS = {"token": token, "block": block}


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


def unscaled(rows, kind, wide):
    """One side's rows at T = 1 without filters, as a function i -> Law."""
    law = widened(side(rows, kind, None, None, None, None, None), wide)
    return lambda i: law(i)[0]


def widened(law, wide):
    """The same rows with zeros behind their last id."""

    def row(i):
        known, slack = law(i)
        return padded(known, wide), slack

    return row


def verify_chain(
    target_logits,
    draft_tokens,
    draft_logits=None,
    *,
    cu_draft=None,
    max_draft=None,
    bonus_tokens=None,
    temperature=None,
    top_k=None,
    top_p=None,
    min_p=None,
    target_stats=None,
    draft_stats=None,
    draft_temperature=None,
    draft_top_k=None,
    draft_top_p=None,
    draft_min_p=None,
    target_kind="logits",
    draft_kind="logits",
    method="token",
    rule="exact",
    alpha=None,
    seed=None,
    offset=None,
    uniforms=None,
):
    """As the op; rule and alpha as rules.per_request reads them. The draft's row behind its last draft is read where
    draft_logits holds one more row per request and the rule is a law other than exact: it must be filled wherever a
    request's draft ends."""
    if method not in METHODS:
        raise ValueError(f"verify_chain: method must be 'token' or 'block', got {method!r}")
    dense = cu_draft is None
    B = len(draft_tokens) if dense else len(cu_draft) - 1
    G = draft_tokens.shape[1] if dense else max_draft
    starts = [0] * (B + 1) if dense else cu_draft.tolist()
    vocab = target_logits.shape[-1]
    draft_vocab = vocab if draft_logits is None else draft_logits.shape[-1]
    if uniforms is None and seed is not None:
        uniforms = torch.cat([philox_uniforms(seed, offset, G, 0), philox_uniforms(seed, offset, 1, 1)], 1)
    uniforms = np.zeros((B, G + 1)) if uniforms is None else given(numpy_rows(uniforms))

    def pick(value, b):  # this request's own parameter
        return value[b] if torch.is_tensor(value) and value.dim() else value

    def rows_of(t, b, extra):  # this request's rows of a dense or ragged tensor
        return None if t is None else t[b] if dense else t[starts[b] + extra * b : starts[b + 1] + extra * (b + 1)]

    wide = max(vocab, draft_vocab)
    rules = per_request("verify_chain", B, method, rule, alpha)

    out = Verified(
        torch.full((B, G + 1), -1),
        torch.zeros(B, dtype=torch.int32),
        torch.zeros(B, G + 1, dtype=torch.float64),
        torch.zeros(B, dtype=torch.int32),
        torch.zeros(B, dtype=torch.float64),
    )
    extra_p = int(bonus_tokens is None)
    extra_q = int(
        draft_logits is not None and (draft_logits.shape[1] > G if dense else len(draft_logits) != len(draft_tokens))
    )
    for b in range(B):
        p_params = [pick(x, b) for x in (temperature, top_k, top_p, min_p)]
        q_params = [pick(x, b) for x in (draft_temperature, draft_top_k, draft_top_p, draft_min_p)]
        p_rows, q_rows = rows_of(target_logits, b, extra_p), rows_of(draft_logits, b, extra_q)
        target = widened(side(p_rows, target_kind, rows_of(target_stats, b, extra_p), *p_params), wide)
        draft = (
            q_rows
            if q_rows is None
            else widened(side(q_rows, draft_kind, rows_of(draft_stats, b, extra_q), *q_params), wide)
        )
        target1 = unscaled(p_rows, target_kind, wide)
        draft1 = q_rows if q_rows is None else unscaled(q_rows, draft_kind, wide)
        ids = rows_of(draft_tokens, b, 0).tolist()
        drafts = list(itertools.takewhile(lambda d: 0 <= d < wide, ids))
        bonus = int(bonus_tokens[b]) if bonus_tokens is not None and len(drafts) == len(ids) else None
        chance = Coins(uniforms[b, :-1], float(uniforms[b, -1]))
        done = METHODS[method](
            Chain(drafts, target, draft, target1, draft1, vocab, *rules[b], chance, bonus, bool(extra_q))
        )
        n = len(done.tokens)
        out.tokens[b, :n] = torch.tensor(done.tokens)
        out.logprobs[b, :n] = torch.tensor(done.logprobs, dtype=torch.float64)
        out.num_accepted[b], out.status[b], out.margin[b] = n - 1, done.status, chance.margin
    return out
