# SPDX-License-Identifier: Apache-2.0
"""A model whose rows are a function of the tokens that a query attends to, whatever the shape of the pass.

Its cache holds the tokens and their positions. The model raises unless the positions that a query attends to are 0, 1,
2, ..., each once.
"""

import random

import torch

from specdec_kernels.decode import SlotCache
from specdec_kernels.decode.models.slot_cache import kept


class TableModel:
    """A model with the logits row(path) [V] after the tokens `path`."""

    max_positions, device = 4096, torch.device("cpu")

    def __init__(self, vocab, row):
        self.vocab_size, self.row, self.known, self.calls, self.fed = vocab, row, {}, 0, 0

    def new_cache(self, slots, capacity):
        return SlotCache(slots, capacity)

    def forward(self, ids, start, cache, slot=0, keep="all", branches=None):
        places = cache.begin(start, ids.shape[1], slot, self.device, branches)
        written = torch.stack((ids, places), -1)[:, :, None].double()
        held, _ = cache.update(0, *2 * [written.flatten(0, 1)])
        self.calls += keep is not None
        self.fed += ids.numel()
        if keep is None:
            return None
        wanted = _present(ids, branches)
        if isinstance(keep, list):
            wanted &= torch.arange(ids.shape[1]) == torch.tensor(keep)[:, None]
        rows = torch.zeros(*ids.shape, self.vocab_size, dtype=self.row((0,)).dtype)
        for i, j in wanted.nonzero().tolist():
            rows[i, j] = self._behind(held[i, 0], cache.visible()[i, 0, j])
        return rows[ids >= 0] if keep == "present" else kept(rows, keep)

    def _behind(self, held, seen):
        text = sorted((int(place), int(token)) for token, place in held[seen].tolist())
        assert [place for place, _ in text] == list(range(len(text))), f"not a text: {text}"
        path = tuple(token for _, token in text)
        if path not in self.known:
            self.known[path] = self.row(path)
        return self.known[path]


def _present(ids, branches):
    """Return which ids [n, T] are not padding. In a tree a node other than the root that has no parent is padding."""
    if branches is None:
        return ids >= 0
    node = torch.as_tensor(branches.first)[:, None] + torch.arange(ids.shape[1])
    return (ids >= 0) & ((branches.parents.gather(1, node) >= 0) | (node == 0))


def random_rows(vocab, seed, levels=None, spread=1.5, dtype=torch.float32):
    """Return random rows. With few levels they have few distinct values, so that beams tie."""

    def row(path):
        rng = random.Random(f"{seed} {path}")
        if levels is None:
            return torch.tensor([rng.gauss(0, spread) for _ in range(vocab)], dtype=dtype)
        return torch.tensor([float(rng.randrange(levels)) for _ in range(vocab)], dtype=dtype)

    return row


def near(row, noise, seed):
    """Return a function like `row`, with Gaussian noise added: the rows of a draft model that resembles the target."""

    def other(path):
        z, rng = row(path), random.Random(f"{seed} {path}")
        return z + noise * torch.tensor([rng.gauss(0, 1) for _ in z], dtype=z.dtype)

    return other
