# SPDX-License-Identifier: Apache-2.0
"""What verify_chain and verify_tree read and write, request by request: the rows of one side, and what was emitted."""

from typing import NamedTuple

import torch

from .law import law_of_logits, law_of_probs, numpy_rows
from .row_stats import stats_of_rows

NO_FILTERS = (None, None, None, None)


class Side(NamedTuple):
    """The rows of one request as the call describes them."""

    rows: torch.Tensor  # [n, V]
    kind: str
    stats: torch.Tensor | None  # [n, 4]
    params: tuple  # temperature, top_k, top_p, min_p: None or a number each

    def of_probs(self, row):
        return law_of_probs(row)

    def of_logits(self, z, stats):
        return law_of_logits(z, stats)

    def exact(self, row):
        """A row that nothing rounds."""
        return row

    def law(self):
        """i -> Law of row i."""
        rows = numpy_rows(self.rows)
        if self.kind == "probs" and self.params[0] is None:  # else its argmax is wanted
            return lambda i: self.of_probs(rows[i])
        return lambda i: self.of_logits(rows[i], self.stats_of(rows, i))

    def stats_of(self, rows, i):
        if self.stats is not None:
            return self.stats[i].double().tolist()
        return stats_of_rows(rows[i : i + 1], *self.params)[0]

    def unscaled(self):
        """The same rows at T = 1 without filters."""
        return self._replace(stats=None, params=NO_FILTERS)


def pick(params, b):
    """Request b's own parameters."""
    return tuple(x[b] if torch.is_tensor(x) and x.dim() else x for x in params)


class Verified(NamedTuple):
    tokens: torch.Tensor  # [B, G+1] int64: accepted tokens, one final token, then -1
    num_accepted: torch.Tensor  # [B] int32
    logprobs: torch.Tensor  # [B, G+1] float64, ln of the target law at each emitted token
    status: torch.Tensor  # [B] int32

    @classmethod
    def of(cls, walks, B, width):
        """What the walks of the first of B requests have emitted; the others are absent."""
        out = cls(
            torch.full((B, width), -1, dtype=torch.int64, device="cpu"),
            torch.zeros(B, dtype=torch.int32, device="cpu"),
            torch.zeros(B, width, dtype=torch.float64, device="cpu"),
            torch.zeros(B, dtype=torch.int32, device="cpu"),
        )
        for b, walk in enumerate(walks):
            out.num_accepted[b], out.status[b] = len(walk.tokens) - 1, walk.status
            out.tokens[b, : len(walk.tokens)] = torch.tensor(walk.tokens, dtype=torch.int64, device="cpu")
            out.logprobs[b, : len(walk.tokens)] = torch.tensor(walk.logprobs, dtype=torch.float64, device="cpu")
        return out
