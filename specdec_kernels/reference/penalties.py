# SPDX-License-Identifier: Apache-2.0
"""Penalties on used tokens, applied to a row z of logits. They also count the tokens drafted before the row.

    e = z
    if seen(v):      e = e / r if e > 0 else e * r        repetition
                     e = e - f * count(v)                 frequency
    if count(v) > 0: e = e - s                            presence

seen(v): v is in the prompt, in the output or in the window; count(v): how often v is in the output and in the window.
The window of row i of a chain is the drafts before it.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from .entries import places_of


class History(NamedTuple):
    seen: np.ndarray  # [V] bool
    counts: np.ndarray  # [V] int64
    places: Callable | None = None  # places_of() of a row whose entries have ids of their own

    @classmethod
    def of_list(cls, ids, counts, V, places=None):
        """Return the history of a list: distinct ids with their counts in the output; -1 pads."""
        history = cls(np.zeros(V, dtype=bool), np.zeros(V, dtype=np.int64), places)
        places = places or places_of(V)
        for v, count in zip(ids, counts):
            history.seen[places(v)], history.counts[places(v)] = True, count
        return history

    @classmethod
    def of_table(cls, counts, bits, V, places=None):
        """Return the history of a table: the counts of the first ids, and a bit for each id in the prompt."""
        table = [(v, count) for v, count in enumerate(counts) if count != 0 or bits[v // 32] >> v % 32 & 1]
        return cls.of_list([v for v, _ in table], [count for _, count in table], V, places)

    @classmethod
    def of(cls, penalties, s, V, places=None):
        """Return the history with index s."""
        counts = penalties.counts[s].tolist()
        if penalties.ids is None:
            return cls.of_table(counts, penalties.prompt_bits[s].tolist(), V, places)
        return cls.of_list(penalties.ids[s].tolist(), counts, V, places)

    def after(self, window):
        """Return the history after the window's tokens are emitted too. Ids outside the row are ignored."""
        seen, count = self.seen.copy(), self.counts.copy()
        places = self.places or places_of(len(seen))
        for v in window:
            seen[places(v)] = True
            count[places(v)] += 1
        return self._replace(seen=seen, counts=count)


def penalised(z, history, repetition=1.0, frequency=0.0, presence=0.0):
    """Return the row z [V] after penalties, in the dtype of z. Each operation is rounded to this dtype by itself."""
    number = z.dtype.type
    r, f, s = number(repetition), number(frequency), number(presence)
    if not (r > 0 and np.isfinite([r, f, s]).all()):
        return np.full_like(z, np.nan)
    with np.errstate(all="ignore"):
        e = np.where(history.seen, np.where(z > 0, z / r, z * r), z)
        e = np.where(history.counts > 0, e - f * history.counts.astype(z.dtype), e)
        return np.where(history.counts > 0, e - s, e)


def amounts(penalties, n):
    """Return repetition, frequency and presence of request or row n, rounded to float32."""
    given = [torch.as_tensor(off if x is None else x, dtype=torch.float32).reshape(-1)
             for x, off in zip(penalties[:3], (1.0, 0.0, 0.0))]  # fmt: skip
    return [float(x[n % len(x)]) for x in given]
