# SPDX-License-Identifier: Apache-2.0
"""A small language, for the field `allowed` of a request."""

import numpy as np
import torch


class Grammar:
    """A language over V ids with texts of at least `least` tokens. What may follow a text depends on all of it.

    A call raises if the text is not in the language or has ended already. Each mask is written into the same words.
    After some texts everything is allowed.
    """

    def __init__(self, V, end=0, least=4, share=2):
        self.V, self.end, self.least, self.share = V, end, least, share
        self.words, self.calls = torch.zeros(1, dtype=torch.int32), 0

    def may(self, text, v):
        if v == self.end:
            return len(text) >= self.least
        state = sum((i + 1) * t for i, t in enumerate(text)) + len(text)
        return state % 5 == 4 or (state + v) % self.share == 0

    def __call__(self, text):
        self.calls += 1
        for i, v in enumerate(text):
            assert self.may(text[:i], v) and (v != self.end or i + 1 == len(text)), f"asked about {text}"
        assert self.end not in text, f"asked about {text}"
        ids = [v for v in range(self.V) if self.may(text, v)]
        if len(ids) == self.V:
            return None
        self.words[0] = int(np.uint32(sum(1 << v for v in ids)).astype(np.int32))
        return self.words
