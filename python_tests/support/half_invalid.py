# SPDX-License-Identifier: Apache-2.0
"""Drafters many of whose draft tokens are forbidden by the requests' masks."""

import random

import numpy as np
import torch

from specdec_kernels.decode import Draft, Drafter, TreeDraft


def split(words, V):
    """Return the ids that a mask allows, and those that it forbids."""
    words = np.asarray(words, dtype=np.int32)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")[:V]
    bits = np.pad(bits, (0, V - len(bits)))
    return np.flatnonzero(bits).tolist(), np.flatnonzero(bits == 0).tolist()


class _HalfInvalid(Drafter):
    """The base of these drafters.

    texts: {prompt: output}. While a request's text agrees with its output here, the next token of that output is the
    allowed token to draft. Otherwise it is any allowed token.
    """

    rules = ("exact",)

    def __init__(self, masks, V, texts=None, depth=4):
        self.masks, self.V, self.texts, self.depth = masks, V, texts or {}, depth
        self.num_lookahead = 3 * depth + 2
        self.rng, self.valid, self.invalid = random.Random(1), 0, 0

    def tokens(self, s, path):
        """Return an allowed and a forbidden token after the drafts `path`, or None if the text ends there."""
        text = s.tokens[len(s.request.prompt) :] + path
        if len(text) >= s.request.max_new_tokens - 1 or (path and path[-1] in s.request.eos):
            return None
        good, bad = split(self.masks(text), self.V)
        known = self.texts.get(tuple(s.request.prompt), [])
        if known[: len(text)] == text and len(known) > len(text):
            return known[len(text)], self.rng.choice(bad)
        return self.rng.choice(good), self.rng.choice(bad)


class HalfInvalidChains(_HalfInvalid):
    """Chains that are allowed up to a random place, and have a forbidden token at each place from there on."""

    verifies = ("token", "block", "race")

    def propose(self, batch):
        rows = []
        for s in batch:
            path, row, cut = [], [], self.rng.randrange(self.depth)
            for i in range(self.depth):
                pair = self.tokens(s, path)
                if pair is None:
                    break
                path.append(pair[0])
                row.append(pair[i >= cut])
            self.valid, self.invalid = self.valid + min(cut, len(row)), self.invalid + max(0, len(row) - cut)
            rows.append(row + [-1] * (self.depth - len(row)))
        return Draft(torch.tensor(rows))


class HalfInvalidTrees(_HalfInvalid):
    """Trees with one path of allowed nodes. Each has a forbidden sibling before or after it, with a child."""

    verifies, chains = ("token",), False

    def propose(self, batch):
        trees = [self.tree(s) for s in batch]
        N = max(len(parents) for parents, _ in trees)
        parents, tokens = ([x + [-1] * (N - len(x)) for x in column] for column in zip(*trees))
        parents = torch.tensor(parents, dtype=torch.int32)
        return TreeDraft(parents, torch.tensor(tokens).view(len(batch), N)[:, 1:], "target_only", self.depth)

    def tree(self, s):
        parents, tokens, path, node = [-1], [-1], [], 0
        for _ in range(self.depth - 1):
            pair = self.tokens(s, path)
            if pair is None:
                break
            order = self.rng.sample(pair, 2)
            good, bad = (len(parents) + order.index(x) for x in pair)
            parents += [node, node, bad]
            tokens += [*order, pair[0]]
            self.valid, self.invalid = self.valid + 1, self.invalid + 2
            path, node = [*path, pair[0]], good
        return parents, tokens
