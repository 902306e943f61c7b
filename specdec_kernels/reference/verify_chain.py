# SPDX-License-Identifier: Apache-2.0
"""Verification of one chain of drafts per request, one request at a time.

The methods block and race are in block.py and race.py, and the acceptance rules in rules/.
"""

import itertools
import math

import torch

from ..registry import CHAIN_METHODS
from .block import block
from .chain import Chain
from .chance import GivenUniforms
from .entries import IDS_END, renumbered, width_of
from .law import no_row, padded
from .padded import first, present
from .race import of_tests, race, request_noise
from .rows import of_request, rows_of
from .rules import per_request, verify_draft
from .sides import Verified
from .views import is_seen, written_out

__all__ = ["METHODS", "verify_chain"]


def token(chain):
    """Verify token by token (Leviathan et al. 2023, Algorithm 1; Chen et al. 2023, Algorithm 2)."""
    for i, d in enumerate(chain.drafts):
        p = chain.p(i)
        if not chain.readable(p, d):
            chain.bonus = None
            break  # the drafts end here
        accepted, rest = verify_draft(chain, i, d, p)
        if not accepted:
            return chain.draw(p, rest)
        chain.take(d, p)
    return chain.end()


METHODS = {"token": token, "block": block, "race": race}


class Batch:
    """The rows of each request in a batch: an index into dense tensors, or a slice of ragged ones."""

    def __init__(self, draft_tokens, cu_draft, max_draft):
        self.starts = None if cu_draft is None else cu_draft.tolist()
        self.B = len(draft_tokens) if cu_draft is None else len(cu_draft) - 1
        self.G = draft_tokens.shape[1] if cu_draft is None else max_draft

    def rows(self, t, b, extra=0):
        """Return request b's rows of a tensor. extra: the rows per request that follow those of its drafts."""
        if t is None or self.starts is None:
            return t if t is None else t[b]
        return t[self.starts[b] + extra * b : self.starts[b + 1] + extra * (b + 1)]

    def laws(self, b, side_of, extra, wide, rows, one_hot, ids):
        """Return two functions i -> Law of one side's rows, as sampled and unscaled; (None, None) without rows.

        Laws are padded to width `wide`. one_hot: the row index that means a one-hot draft. ids: the request's drafts.
        """
        if rows is None:
            return None, None
        if rows.row is None:
            own = of_request(rows, b, lambda t: self.rows(t, b, extra))
            side = side_of(self.seen(own, rows, b, ids, range(len(own.logits))))
            laws = side.law(), side.unscaled().law()
        else:
            laws = self.stored(self.rows(rows.row, b, extra).tolist(), side_of, one_hot, rows, b, ids)
        return tuple(all_padded(law, wide) for law in laws)

    def seen(self, own, rows, b, ids, positions):
        """Return request b's own Rows with its views. The window of position i is the drafts before it."""
        windows = [ids[:i] for i in positions]
        first = b * (self.G + 1) if self.starts is None else self.starts[b] + b
        at = [first + i for i in positions]
        seen = written_out(own.logits, rows, windows, [b] * len(windows), self.B, at, own.ids)
        return own._replace(logits=seen.double() if is_seen(rows) else seen)

    def stored(self, numbers, side_of, one_hot, rows, b, ids):
        """Return the functions of Batch.laws for rows looked up by index: row n of [S, K, V] is [n // K, n % K]."""
        lead = rows.logits.shape[:-1]
        there = [i for i, n in enumerate(numbers) if 0 <= n < math.prod(lead)]

        def taken(t):
            at = [divmod(numbers[i], lead[1]) if len(lead) == 2 else (numbers[i],) for i in there]
            return torch.stack([t[i] for i in at]) if at else t.new_empty(0, t.shape[-1])

        side = side_of(self.seen(of_request(rows, b, taken), rows, b, ids, there))

        def law_of(law):
            def row(i):
                if i in there:
                    return law(there.index(i))
                return None if numbers[i] == one_hot else no_row()

            return row

        return law_of(side.law()), law_of(side.unscaled().law())


def all_padded(law, wide):
    """Return a function i -> Law, padded with zeros to width `wide`."""

    def row(i):
        known = law(i)
        return known and padded(known, wide)

    return row


def verify_chain(
    target,
    draft_tokens,
    draft=None,
    *,
    cu_draft=None,
    max_draft=None,
    bonus_tokens=None,
    method="token",
    rule="exact",
    alpha=None,
    seed=None,
    offset=None,
    uniforms=None,
    num_requests=None,
    chance_type=GivenUniforms,
):
    """Verify one chain of drafts per request, with the op's arguments. rule and alpha are as in rules.per_request.

    The draft's row after the last draft is read if the draft has one more row per request, no bonus token is
    given, and the rule defines a distribution and is not exact. This row must then be filled wherever a request's
    drafts may end. chance_type: the class that makes a request's decisions.
    """
    if method not in METHODS:
        raise ValueError(f"verify_chain: method must be 'token', 'block' or 'race', got {method!r}")
    batch = Batch(draft_tokens, cu_draft, max_draft)
    target, draft = rows_of(target), rows_of(draft, draft=True)
    if not CHAIN_METHODS[method].reads_draft:
        draft = None
    vocab = target.logits.shape[-1]
    width = max(vocab, width_of(draft))
    end = width if draft is None or draft.ids is None else IDS_END
    n = present(num_requests, batch.B)
    rules = per_request("verify_chain", n, method, *first(n, rule, alpha), batch.G)
    random = of_tests("verify_chain", method, seed, offset, uniforms)
    chances = chance_type.of_requests("verify_chain", batch.B, batch.G, *random)
    bonus_row, end_row = bonus_tokens is None, False
    if draft is not None:
        positions = draft.logits if draft.row is None else draft.row
        end_row = positions.shape[1] > batch.G if cu_draft is None else len(positions) != len(draft_tokens)
    walks = []
    for b, chance in enumerate(chances[:n]):
        ids = batch.rows(draft_tokens, b).tolist()
        drafts, wide = renumbered(list(itertools.takewhile(lambda d: 0 <= d < end, ids)), width)
        p, p1 = batch.laws(b, chance.side, bonus_row, wide, target, None, ids)
        q, q1 = batch.laws(b, chance.side, end_row, wide, draft, -1, ids)
        bonus = None if bonus_row or len(drafts) < len(ids) else int(bonus_tokens[b])
        keys = batch.rows(seed, b, 1) if offset is None else None
        noise = request_noise(b, batch.B, seed, offset, keys)
        walks.append(METHODS[method](Chain(drafts, p, q, p1, q1, vocab, *rules[b], chance, bonus, end_row, noise)))
    return Verified.of(walks, batch.B, batch.G + 1)
