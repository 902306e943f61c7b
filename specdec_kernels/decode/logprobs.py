# SPDX-License-Identifier: Apache-2.0
"""Logprobs of the tokens that a step emits, for the requests that want them."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch

import specdec_kernels as sk

from .result import Logprobs
from .transfers import Reading, at_most

__all__ = ["StepLogprobs"]


class StepLogprobs:
    """The logprobs of a step: requested here, and read to the host with the step's other results.

    Token i of those that a step emits belongs to the target's row after i accepted drafts. In a chain this is row i, in
    a tree the row of the accepted path's node i (Proposal.emitting). sk.top_logprobs reads these rows once more.

    Args:
        logits, row: of the target's pass, as Proposal.verify takes them.

    Raises:
        ValueError: a request that wants logprobs did not need the target in this step.
    """

    def __init__(self, proposal: Any, verified: Any, logits: torch.Tensor | None, batch: Any, row: torch.Tensor | None):
        self._asked = [(part, self._ask(proposal, verified, logits, part, row)) for part in batch.reporting]
        self._size = len(batch)

    def _ask(self, proposal, verified, logits, part, row) -> tuple[int, list[Reading]]:
        """Request the ids and logprobs of the requests of one mode -> the number of ids per row, the pending reads."""
        if logits is None or not all(proposal.needs_target[i] for i in part.members):
            raise ValueError(f"logprobs need the target's rows, {type(proposal).__name__} did not ask for them")
        accepted, batch = verified.num_accepted[part.at], part.batch
        tokens = verified.tokens[part.at]
        E = at_most(accepted, tokens.shape[1] - 1) + 1  # the most tokens that a request emits
        tokens, places = tokens[:, :E], proposal.emitting(verified)[part.at, :E].clamp(min=0)
        P = logits.shape[1] if row is None else 0
        number = part.at[:, None] * P + places if row is None else row[part.at].gather(1, places).clamp(min=0)
        z = logits.flatten(0, -2)[number.flatten()]
        seen = {} if part.raw else _repeated(batch.sampling, E) | batch.views.along_chain(tokens[:, :-1])
        k = max(s.request.logprobs for s in batch)
        out = sk.top_logprobs(sk.Rows(z, **seen), k, tokens.reshape(-1, 1))
        m = len(tokens)
        values = out.ids, _bits(out.logprobs), _bits(out.token_logprobs), out.token_ranks
        return k, [batch.readback.ask(x.reshape(m, -1)) for x in values]

    def read(self, counts: Sequence[int]) -> list[list[Logprobs] | None]:
        """Return the logprobs of each request's first `counts[i]` tokens; None for requests that want none."""
        found: list[list[Logprobs] | None] = [None] * self._size
        for part, (k, asked) in self._asked:
            for i, s, *row in zip(part.members, part.batch, *(reading.rows for reading in asked)):
                ids, logprobs, own, rank = row
                top, n = list(zip(ids, _floats(logprobs))), s.request.logprobs
                each = zip(_floats(own), rank, (tuple(top[at * k : at * k + n]) for at in range(len(rank))))
                found[i] = [Logprobs(*x) for x in islice(each, counts[i])]
        return found


def _repeated(sampling: dict, times: int) -> dict:
    return {name: None if x is None else x.repeat_interleave(times) for name, x in sampling.items()}


def _bits(x: torch.Tensor) -> torch.Tensor:
    """Return float32 values as integers with the same bits, which a read-back takes."""
    return x.contiguous().view(torch.int32)


def _floats(bits: list[int]) -> list[float]:
    return torch.tensor(bits, dtype=torch.int32, device="cpu").view(torch.float32).tolist()
