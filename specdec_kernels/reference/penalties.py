# SPDX-License-Identifier: Apache-2.0
"""Penalties: a row of logits as a request sees it after the tokens that were drafted before the row.

    e = z
    if seen(v):      e = e / r if e > 0 else e * r        repetition
                     e = e - f * count(v)                 frequency
    if count(v) > 0: e = e - s                            presence

seen(v): v is in the prompt, in the output or in the window; count(v): how often v is in the output and in the window.
The window of row i of a chain is the drafts before it.
"""

from typing import NamedTuple

import numpy as np
import torch

from .law import numpy_rows


class History(NamedTuple):
    seen: np.ndarray  # [V] bool
    counts: np.ndarray  # [V] int64

    @classmethod
    def of_list(cls, ids, counts, V):
        """Return the history of a list: distinct ids with their counts in the output; -1 pads."""
        history = cls(np.zeros(V, dtype=bool), np.zeros(V, dtype=np.int64))
        for v, count in zip(ids, counts):
            if 0 <= v < V:
                history.seen[v], history.counts[v] = True, count
        return history

    def after(self, window):
        """Return the history once the window's tokens are emitted too. Ids outside the row are no entries of it."""
        seen, count = self.seen.copy(), self.counts.copy()
        for v in window:
            if 0 <= v < len(seen):
                seen[v] = True
                count[v] += 1
        return History(seen, count)


def penalised(z, history, repetition=1.0, frequency=0.0, presence=0.0):
    """Return the row z [V] under penalties, in the dtype of z: each operation is rounded to it by itself."""
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


def written_out(rows, penalties, windows, numbers):
    """Return rows [n, V] as float32 rows under penalties: row i after windows[i], with the history and the penalties of
    request or row numbers[i]."""
    if penalties is None:
        return rows
    z = numpy_rows(rows).astype(np.float32)
    seen = []
    for row, window, n in zip(z, windows, numbers):
        at = n if penalties.row is None else int(penalties.row[n])
        history = History.of_list(penalties.ids[at].tolist(), penalties.counts[at].tolist(), len(row))
        seen.append(penalised(row, history.after(window), *amounts(penalties, n)))
    return torch.from_numpy(np.stack(seen)) if seen else rows.float()


def seen_rows(rows, n):
    """Return Rows [N, V] without penalties, whose first n rows are written out."""
    if rows.penalties is None:
        return rows
    drafted = rows.penalties.drafted
    windows = [()] * n if drafted is None else drafted[:n].tolist()
    seen = written_out(rows.logits[:n], rows.penalties, windows, range(n))
    return rows._replace(logits=torch.cat([seen, rows.logits[n:].float()]), penalties=None)


def seen_nodes(rows, parents, tokens, numbers, positions, n):
    """Return a tree's side without penalties, its rows by number: of the first n requests row numbers[b][i] of node i
    is written out as positions[b][i] sees it, once for nodes that see it alike. A number that names no row stays one.

    parents, tokens [B, N]. A position sees a row after the tokens on the way from the root to it."""
    (B, N), M = parents.shape, rows.logits.shape[1]
    logits = torch.zeros(B, N, rows.logits.shape[2], dtype=torch.float32, device="cpu")
    stats = None if rows.stats is None else torch.zeros(B, N, 4, dtype=torch.float32, device="cpu")
    own = torch.tensor(
        [[x if x < 0 else N for x in numbers[b]] for b in range(B)], dtype=torch.int64, device="cpu"
    ).reshape(B, N)
    for b in range(n):
        places = {}
        for i, seen in enumerate(zip(numbers[b], positions[b])):
            if not 0 <= seen[0] < M:
                continue
            own[b, i] = at = places.setdefault(seen, i)
            if at == i:
                window = path(parents[b].tolist(), tokens[b].tolist(), seen[1])
                logits[b, i] = written_out(rows.logits[b, seen[0]][None], rows.penalties, [window], [b])[0]
                if stats is not None:
                    stats[b, i] = rows.stats[b, seen[0]]
    return rows._replace(logits=logits, stats=stats, row=own, penalties=None)


def path(parents, tokens, node):
    """Return the tokens on the way from the root, which is not among them, to a node."""
    found = []
    while node > 0:
        found.append(tokens[node])
        node = parents[node] if parents[node] < node else 0
    return found[::-1]
