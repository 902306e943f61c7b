# SPDX-License-Identifier: Apache-2.0
"""Draws from rows for drafting: by inverse CDF, with or without replacement, or by a race."""

import math
from typing import NamedTuple

import numpy as np
import torch

from ..registry import SAMPLING
from .chance import GivenUniforms
from .law import in_float64, without
from .padded import first, padded, present
from .race import request_noise
from .row_stats import stats_of
from .rows import Rows, rows_of
from .uniforms import given
from .uniforms import uniforms as philox_uniforms
from .views import seen_rows


class Sampled(NamedTuple):
    tokens: torch.Tensor  # [N, k] int64, -1 if nothing was left to draw
    logprobs: torch.Tensor  # [N, k] float64, ln q(token) of the whole row's distribution
    rows: Rows  # the given rows, with stats [N, 4] float64 in place of sampling parameters


def sample(
    rows,
    k=1,
    replacement=True,
    *,
    seed=None,
    offset=None,
    slot=0,
    uniforms=None,
    num_rows=None,
    race=False,
    chance_type=GivenUniforms,
):
    """Draw k tokens from each row, with the op's arguments. chance_type: the class that makes the draws."""
    given_rows = rows if isinstance(rows, Rows) else Rows(rows)
    N, n = len(given_rows.logits), present(num_rows, len(given_rows.logits))
    rows = seen_rows(rows_of(rows, draft=True), n)
    stats = stats_of(rows, num_rows)[:n]
    logits, ids, seed, offset, slot, uniforms = first(n, rows.logits, rows.ids, seed, offset, slot, uniforms)
    if race or (uniforms is None and seed is None):  # no uniforms: a race, or greedy rows
        u = np.zeros((n, k))
    elif uniforms is None:
        u = philox_uniforms(seed, offset, k, 2, torch.as_tensor(slot, device="cpu").expand(n)).numpy()
    else:
        u = given(in_float64(uniforms))
    side = chance_type.side(Rows(logits, stats=stats, ids=ids))
    laws = [*map(side.law_of_entries(), range(n))]
    ids = np.arange(logits.shape[-1])[None].repeat(n, 0) if ids is None else ids.numpy()
    drawn = []
    for i, law in enumerate(laws):
        over_ids, chances = side.of_ids(law, i), [chance_type((), x) for x in u[i]]
        if race:
            noise = request_noise(i, n, seed, offset, None if seed is None else seed.expand(n))
            drawn.append(first_of_race(over_ids, chances, noise and noise(i, 0)))
        else:
            drawn.append(draw_row(law, ids[i], over_ids, chances, replacement))
    tokens = torch.tensor([d[0] for d in drawn], dtype=torch.int64, device="cpu").reshape(n, k)
    logprobs = torch.tensor([d[1] for d in drawn], dtype=torch.float64, device="cpu").reshape(n, k)
    plain = given_rows._replace(**dict.fromkeys(SAMPLING))
    drawn_from = plain._replace(stats=padded(stats, N, 0))
    return Sampled(padded(tokens, N, -1), padded(logprobs, N, 0), drawn_from)


def first_of_race(law, chances, noise):
    """Return the first ids of a race, one for each chance object, as (tokens, logprobs). law: over ids."""
    if not law.valid or not (law.p > 0).any():
        return [law.fallback] * len(chances), [math.nan] * len(chances)
    if law.greedy:
        tokens = [int(law.p.argmax()), *[-1] * len(chances)][: len(chances)]
    else:
        tokens = [chance.race(law, noise, place) for place, chance in enumerate(chances)]
    return tokens, [law.log(x) if x >= 0 else -math.inf for x in tokens]


def draw_row(entries, ids, law, chances, replacement):
    """Draw from one row, once by each chance object -> (tokens, logprobs).

    entries: the Law over the row's entries, in whose order the CDF is summed. ids: the ids of the entries. law: the Law
    over ids."""
    tokens, logprobs = [], []
    w = entries.p
    for chance in chances:
        if not law.valid:
            tokens.append(law.fallback)
            logprobs.append(math.nan)
        elif not (w > 0).any():
            tokens.append(-1)
            logprobs.append(-math.inf)
        else:
            x = int(ids[chance.draw(w)])
            tokens.append(x)
            logprobs.append(law.log(x))
            if not replacement:
                w = without(entries.p, entries.log_p, np.isin(ids, tokens))
    return tokens, logprobs
