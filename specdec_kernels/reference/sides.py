# SPDX-License-Identifier: Apache-2.0
"""What the ops read, the rows of one side, and what verify_chain and verify_tree emit, request by request."""

import math
from typing import NamedTuple

import torch

from .law import law_of_logits, law_of_probs, numpy_rows
from .row_stats import stats_and_slack
from .rows import SAMPLING_FIELDS


def law_of(rows):
    """One request's rows [n, V] -> i -> (Law of row i, slack)."""
    values = numpy_rows(rows.logits)
    if rows.kind == "probs" and rows.temperature is None:  # else its argmax is wanted
        return lambda i: (law_of_probs(values[i]), math.inf)

    def law(i):
        if rows.stats is not None:
            return law_of_logits(values[i], rows.stats[i].double().tolist()), math.inf
        (computed,), (slack,) = stats_and_slack(values[i : i + 1], *rows[SAMPLING_FIELDS])
        return law_of_logits(values[i], computed), slack

    return law


class Verified(NamedTuple):
    tokens: torch.Tensor  # [B, G+1] int64: accepted tokens, one final token, then -1
    num_accepted: torch.Tensor  # [B] int32
    logprobs: torch.Tensor  # [B, G+1] float64, ln of the target law at each emitted token
    status: torch.Tensor  # [B] int32
    margin: torch.Tensor  # [B] float64: below 1 another answer is as right as this one

    @classmethod
    def of(cls, walks, chances, B, width):
        """What the walks of the first of B requests have emitted by their chances; the others are absent."""
        out = cls(
            torch.full((B, width), -1, dtype=torch.int64, device="cpu"),
            torch.zeros(B, dtype=torch.int32, device="cpu"),
            torch.zeros(B, width, dtype=torch.float64, device="cpu"),
            torch.zeros(B, dtype=torch.int32, device="cpu"),
            torch.full((B,), math.inf, dtype=torch.float64, device="cpu"),
        )
        for b, (walk, chance) in enumerate(zip(walks, chances)):
            out.num_accepted[b], out.status[b], out.margin[b] = len(walk.tokens) - 1, walk.status, chance.margin
            out.tokens[b, : len(walk.tokens)] = torch.tensor(walk.tokens, dtype=torch.int64, device="cpu")
            out.logprobs[b, : len(walk.tokens)] = torch.tensor(walk.logprobs, dtype=torch.float64, device="cpu")
        return out
