# SPDX-License-Identifier: Apache-2.0
"""Input rows and output of verify_chain and verify_tree, request by request."""

from typing import NamedTuple

import torch

from .entries import law_of_ids, with_place
from .law import law_of_logits, law_of_probs, numpy_rows
from .row_stats import stats_of_rows
from .rows import SAMPLING_FIELDS, Rows


class Side(NamedTuple):
    """The rows [n, V] of one request on one side (target or draft), with its own parameters."""

    rows: Rows | None

    def of_probs(self, row):
        return law_of_probs(row)

    def of_logits(self, z, stats):
        return law_of_logits(z, stats)

    def exact(self, row):
        """Return a row that is free of rounding error. `banded` gives it an error bound of 0."""
        return row

    def law(self):
        """Return a function i -> Law of row i, over ids."""
        of_entries = self.law_of_entries()
        return lambda i: self.of_ids(of_entries(i), i)

    def of_ids(self, law, i):
        """Return the Law over ids, given that over the entries of row i."""
        if self.rows.ids is None:
            return law
        return law_of_ids(law, numpy_rows(self.rows.logits[i]), self.rows.ids[i].numpy())

    def law_of_entries(self):
        """Return a function i -> Law of row i, over its entries."""
        values = numpy_rows(self.rows.logits)
        if self.rows.kind == "probs" and self.rows.temperature is None:  # T = 0 is allowed: the argmax
            return lambda i: self.of_probs(values[i])
        return lambda i: self.of_logits(values[i], self.stats_of(values, i))

    def stats_of(self, values, i):
        if self.rows.stats is not None:
            stats = self.rows.stats[i].double().tolist()
            return stats if self.rows.ids is None else with_place(stats, self.rows.ids[i].numpy())
        return stats_of_rows(values[i : i + 1], *self.rows[SAMPLING_FIELDS])[0]

    def unscaled(self):
        """Return the same rows at T = 1 without filters."""
        return self._replace(rows=self.rows and Rows(self.rows.logits, kind=self.rows.kind, ids=self.rows.ids))


class Verified(NamedTuple):
    tokens: torch.Tensor  # [B, G+1] int64: accepted tokens, one final token, then -1
    num_accepted: torch.Tensor  # [B] int32
    logprobs: torch.Tensor  # [B, G+1] float64, ln of the target's probability of each emitted token
    status: torch.Tensor  # [B] int32

    @classmethod
    def of(cls, walks, B, width):
        """Collect the output of walks, one for each of the first requests. The rest of the B requests are not in
        use."""
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
