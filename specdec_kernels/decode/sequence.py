# SPDX-License-Identifier: Apache-2.0
"""The state of requests that are being decoded."""

from functools import cached_property

import torch

from .request import Event, Request, Result
from .text import TextStream

__all__ = ["Batch", "Sequence"]


class Sequence:
    """One request: its tokens so far (prompt included) and its result.

    Between steps the target's cache holds the keys of tokens[:-1]; the next step feeds tokens[-1] and the draft after it.
    """

    def __init__(self, index: int, request: Request, tokenizer=None):
        if request.stop and tokenizer is None:
            raise ValueError(f"generate: stop strings need a tokenizer (request {index})")
        self.index, self.request, self.result = index, request, Result()
        self.tokens = list(request.prompt)
        self.stream = None if tokenizer is None else TextStream(tokenizer, request.stop)

    @property
    def remaining(self) -> int:
        return self.request.max_new_tokens - len(self.result.tokens)

    def extend(self, tokens: list[int]) -> Event:
        """Take over the tokens of a step, up to the first that ends the request."""
        taken, text, finished = [], "", None
        for token in tokens[: self.remaining]:
            taken.append(token)
            stopped = False
            if self.stream is not None:
                piece, stopped = self.stream.push(token)
                text += piece
            if stopped or token in self.request.eos:
                finished = "stop" if stopped else "eos"
                break
        self.tokens += taken
        self.result.tokens += taken
        self.result.stats.new_tokens += len(taken)
        if finished is None and self.remaining == 0:
            finished = "length"
        if finished in ("eos", "length") and self.stream is not None:
            text += self.stream.flush()
        self.result.text += text
        self.result.finished = finished
        return Event(self.index, taken, text, finished)


class Batch(list):
    """The sequences of a step, in slot order; what they ask of the sampling ops is gathered once per composition."""

    @cached_property
    def law(self) -> dict:
        """Sampling parameters as sk.sample and sk.verify_chain take them; filters nobody uses are left out."""

        def gather(name, off, dtype):
            values = [getattr(s.request, name) for s in self]
            return None if all(v == off for v in values) else torch.tensor(values, dtype=dtype)

        law = dict(
            temperature=torch.tensor([s.request.temperature for s in self], dtype=torch.float32),
            top_k=gather("top_k", 0, torch.int64),
            top_p=gather("top_p", 1.0, torch.float32),
            min_p=gather("min_p", 0.0, torch.float32),
            seed=torch.tensor([s.request.seed for s in self], dtype=torch.int64),
        )
        return law

    @property
    def randomness(self) -> dict:
        """law, and the offset of this step: the number of tokens each sequence has."""
        return dict(self.law, offset=torch.tensor([len(s.tokens) for s in self], dtype=torch.int64))
