# SPDX-License-Identifier: Apache-2.0
"""The views of rows, written out: a bias on some ids, then penalties (penalties.py), then a mask."""

import numpy as np
import torch

from .entries import places_of
from .law import numpy_rows
from .penalties import History, amounts, penalised


def is_seen(rows):
    """Return whether a side has views."""
    return not rows.penalties is rows.bias is rows.allowed is None


def unseen(rows, **changes):
    """Return Rows without views and with other fields changed."""
    return rows._replace(**{"penalties": None, "bias": None, "allowed": None} | changes)


def biased(z, ids, values, places=None):
    """Return the row z [V] with a bias. Values are added in list order, each sum rounded to the dtype of z."""
    z, places = z.copy(), places or places_of(len(z))
    with np.errstate(all="ignore"):
        for v, value in zip(ids, values):
            z[places(v)] += z.dtype.type(value)
    return z


def allowed_ids(words, V, ids=None):
    """Return [V] bool: whether the bits of a mask allow each entry's id."""
    ids = range(V) if ids is None else ids
    return np.array([0 <= v < 32 * len(words) and words[v // 32] >> v % 32 & 1 for v in ids], dtype=bool)


def list_of(lists, row, requests, b, position):
    """Return the index of the list of request b at a position; -1: none.

    requests: their number. position: the index of the position among those of all requests."""
    if row is None:
        return b if len(lists) == requests else position
    return int(row.flatten()[b if row.dim() == 1 and len(row) == requests else position])


def written_out(z, rows, windows, numbers, requests, positions=None, ids=None):
    """Return rows z [n, V] in float32 with views applied. Row i has the views of request (or row) numbers[i], after the
    tokens windows[i].

    Without views, z is returned unchanged. rows: the side that has the views. requests: their number. positions: the
    index of each row's position among those of all requests; None: a request has one position. ids: [n, V], the ids of
    entries; None: entry v has id v."""
    if not is_seen(rows):
        return z
    seen = []
    for i, row in enumerate(numpy_rows(z).astype(np.float32)):
        n = numbers[i]
        position = n if positions is None else positions[i]
        own = None if ids is None else ids[i].tolist()
        places = places_of(len(row), own)
        if rows.bias is not None:
            of_bias, values = (x.flatten(0, -2) for x in rows.bias[:2])
            at = list_of(of_bias, rows.bias.row, requests, n, position)
            if at >= 0:
                row = biased(row, of_bias[at].tolist(), values[at].tolist(), places)
        if rows.penalties is not None:
            at = n if rows.penalties.row is None else int(rows.penalties.row[n])
            history = History.of(rows.penalties, at, len(row), places)
            row = penalised(row, history.after(windows[i]), *amounts(rows.penalties, n))
        if rows.allowed is not None:
            bits = rows.allowed.bits.flatten(0, -2)
            at = list_of(bits, rows.allowed.row, requests, n, position)
            if at >= 0:
                row = np.where(allowed_ids(bits[at].tolist(), len(row), own), row, np.float32(-np.inf))
        seen.append(row)
    return torch.from_numpy(np.stack(seen)) if seen else z.float()


def seen_rows(rows, n):
    """Return Rows [N, V] without views, whose first n rows are written out."""
    if not is_seen(rows):
        return rows
    drafted = None if rows.penalties is None else rows.penalties.drafted
    windows = [()] * n if drafted is None else drafted[:n].tolist()
    ids = None if rows.ids is None else rows.ids[:n]
    seen = written_out(rows.logits[:n], rows, windows, range(n), len(rows.logits), ids=ids)
    return unseen(rows, logits=torch.cat([seen, rows.logits[n:]]).double())


def seen_nodes(rows, parents, tokens, numbers, positions, n):
    """Return a tree's side as Rows by index, without views.

    For each node i of the first n requests, row numbers[b][i] is written out with the views of node positions[b][i]:
    the window is the tokens on the path from the root to that node, without the root's. Nodes with the same row and
    position share one copy. An index out of range stays out of range. parents, tokens: [B, N]."""
    (B, N), M = parents.shape, rows.logits.shape[1]
    logits = torch.zeros(B, N, rows.logits.shape[2], dtype=torch.float64, device="cpu")
    stats = None if rows.stats is None else torch.zeros(B, N, 4, dtype=torch.float32, device="cpu")
    ids = None if rows.ids is None else torch.full(logits.shape, -1, dtype=torch.int64, device="cpu")
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
                row = rows.logits[b, seen[0]][None]
                if ids is not None:
                    ids[b, i] = rows.ids[b, seen[0]]
                its = None if ids is None else ids[b, i][None]
                logits[b, i] = written_out(row, rows, [window], [b], B, [b * N + seen[1]], its)[0]
                if stats is not None:
                    stats[b, i] = rows.stats[b, seen[0]]
    return unseen(rows, logits=logits, stats=stats, row=own, ids=ids)


def path(parents, tokens, node):
    """Return the tokens on the path from the root to a node, without the root's."""
    found = []
    while node > 0:
        found.append(tokens[node])
        node = parents[node] if parents[node] < node else 0
    return found[::-1]
