# SPDX-License-Identifier: Apache-2.0
"""A draft model with a cache that follows the sequences, whichever of its drafts are accepted."""

from collections.abc import Iterable
from itertools import repeat

import torch

import specdec_kernels as sk

from ..models.prompt import PREFILL_CHUNK, read_tokens
from ..models.slot_cache import Branches, SlotCache
from ..models.vocabulary import written_out
from ..transfers import Readback, Reading, upload, upload_rows

__all__ = ["DraftRunner"]

_CHAIN = range(-1, 1 << 30)  # the parents of a chain's nodes


class DraftRunner:
    """A draft model with its cache. Drafted tokens form a tree under the last cached token (a chain is a tree too).

    In the next step the keys of accepted drafts are kept and the others are overwritten. The drafted tokens are read
    back together with the step's results, since they are not needed before the next step.

    A model that reads states gets the target's states for committed tokens, and its own states for drafts. So accepted
    drafts are fed again: their keys were computed without the target's states.

    reach: the most tokens a row may feed in a joint pass. A row that lacks more is fed on its own first.
    """

    prefill_chunk = PREFILL_CHUNK  # tokens of a prompt that one pass reads; a session sets its own

    def __init__(self, model, reach: int):
        self.model, self.reach, self.first = model, reach, 0  # first: the slot of the last batch's first row
        self.vocab_map = getattr(model, "vocab_map", None)

    def rows(self, logits, **fields) -> sk.Rows:
        """Return logits of this model as Rows."""
        return sk.Rows(logits, vocab_map=self.vocab_map, **fields)

    def by_target_id(self, logits) -> torch.Tensor:
        """Return logits of this model by the target's ids [..., V], for a model that verifies another one's drafts."""
        return written_out(logits, self.vocab_map)

    def begin(self, slots, capacity):
        self.cache, self.readback = self.model.new_cache(slots, capacity), Readback()
        self.cached: list[list[int]] = [[] for _ in range(slots)]  # the tokens whose keys each slot holds
        self.drafted: list[dict] = [{} for _ in range(slots)]  # {(node, token): child}; node 0 is the last cached token
        # The drafts fed in this step, pass by pass: tokens, the parents of all nodes, the first fed node. Each of these
        # has a row per request.
        self.fed: list[tuple[Reading, Reading | Iterable, Reading | Iterable[int]]] = []
        self.target_cache: SlotCache | None = None  # the source of states, for a model that reads them

    def follow(self, target, cache):
        size = getattr(self.model, "state_size", None)
        if getattr(self.model, "reads_states", False) and getattr(target, "state_size", None) == size:
            self.target_cache = cache
            for c in (cache, self.cache):
                c.keep_states(size, self.model.dtype, self.model.device)

    def admit(self, slot, sequence):
        self._read_fed()
        self.cached[slot], self.drafted[slot] = [], {}
        self._read(slot, sequence.tokens[:-1])

    def move(self, source, target):
        self._read_fed()
        self.cache.move(source, target)
        self.cached[target], self.drafted[target] = self.cached[source], self.drafted[source]

    def release(self, slot):
        self._read_fed()
        self.cached[slot], self.drafted[slot] = [], {}
        self.cache.clear(slot)

    def forget(self):
        """Drop what a failed step drafted. The tokens in `cached` are still valid: a pass writes only after them."""
        self.fed, self.readback = [], Readback()
        self.drafted = [{} for _ in self.drafted]

    def catch_up(self, batch) -> torch.Tensor:
        """Keep the accepted drafts and feed the missing tokens, at least the last one -> its logits [n, Vq]."""
        missing, start = self._missing(batch)
        ids = upload_rows(missing, self.model.device, 0)
        states = self._states(start, ids.shape[1], self.first)
        logits = self._forward(ids, start, keep=[len(m) - 1 for m in missing], **states)
        self.cached[batch.slots] = [list(s.tokens) for s in batch]
        return logits

    def score(self, batch, drafts) -> torch.Tensor:
        """Catch up and feed drafts [n, g] in the same pass -> logits [n, g + 1, Vq].

        The logits are those after each row's last token and after each of its drafts. Drafts are chains that end at -1.
        """
        missing, start = self._missing(batch)
        n, g = drafts.shape
        rows, columns = (torch.arange(k, device=drafts.device) for k in (n, g + 1))
        last = upload([len(m) - 1 for m in missing], drafts.device)[:, None] + columns
        ids = torch.nn.functional.pad(upload_rows(missing, self.model.device, 0), (0, g)).scatter(
            1, last[:, 1:], drafts
        )
        logits = self._forward(ids, start)
        self.cached[batch.slots] = [list(s.tokens) for s in batch]
        self.fed.append((self.readback.ask(drafts), repeat(_CHAIN), repeat(1)))
        return logits[rows[:, None], last]

    def extend(self, tokens, depth: int) -> torch.Tensor:
        """Feed token `depth` + 1 of each row's chain -> logits [n, Vq]. tokens [n]: -1 if the chain has ended."""
        tokens = tokens[:, None]
        start = [len(known) + depth for known in self._known(len(tokens))]
        if self.target_cache is not None:
            states = self.cache.states_before(start, 1, self.first)
            return self._forward(tokens, start, keep=[0] * len(tokens), states=states)
        self.fed.append((self.readback.ask(tokens), repeat(_CHAIN), repeat(depth + 1)))
        return self._forward(tokens, start, keep=[0] * len(tokens))

    def grow(self, tokens, branches: Branches) -> torch.Tensor:
        """Feed nodes of each row's tree -> logits [n, W, Vq]. tokens [n, W]; padding has parent -1."""
        start = [len(known) - 1 for known in self._known(len(tokens))]
        if self.target_cache is not None:
            above = upload(start, tokens.device)[:, None] + _parents(branches, tokens.shape[1])
            return self._forward(tokens, start, branches=branches, states=self.cache.states_at(above, self.first))
        first = branches.first if isinstance(branches.first, list) else self.readback.ask(branches.first)
        self.fed.append((self.readback.ask(tokens), self.readback.ask(branches.parents), first))
        return self._forward(tokens, start, branches=branches)

    def _read_fed(self):
        """Read the tokens that were fed as drafts to the host, and enter them into `drafted`."""
        for tokens, *tree in self.fed:
            parents, first = (x.rows if isinstance(x, Reading) else x for x in tree)
            for known, row, above, at in zip(self.drafted[self.first :], tokens.rows, parents, first):
                known.update({(above[at + j], t): at + j for j, t in enumerate(row) if above[at + j] >= 0})
        self.fed = []

    def _missing(self, batch):
        """Return the tokens of each sequence to feed, at least its last, and the position of the first."""
        self._read_fed()
        self.readback, self.first = batch.readback, batch.first
        for slot, s in enumerate(batch, self.first):
            self._roll_back(slot, s.tokens)
        paths = [self._taken(slot, s.tokens) for slot, s in enumerate(batch, self.first)]
        self._compact(paths)
        missing, start = [], []
        for slot, (sequence, path) in enumerate(zip(batch, paths), self.first):
            n = len(self.cached[slot]) + len(path) - 1
            self.cached[slot], self.drafted[slot] = sequence.tokens[:n], {}
            if len(sequence.tokens) - n > self.reach:
                self._read(slot, sequence.tokens[n:-1])
            start.append(len(self.cached[slot]))
            missing.append(sequence.tokens[start[-1] :])
        return missing, start

    def _compact(self, paths):
        if any(path != list(range(len(path))) for path in paths):
            start = [len(known) - 1 for known in self._known(len(paths))]
            self.cache.compact(start, upload_rows(paths, self.model.device), self.first)

    def _known(self, rows: int) -> list[list[int]]:
        return self.cached[self.first : self.first + rows]

    def _roll_back(self, slot, tokens):
        """Drop cached tokens that the sequence does not have.

        A sequence only grows, except one that runs ahead of the target (hierarchical_drafter.py): some of its cached
        tokens may have been rejected.
        """
        known, most = self.cached[slot], len(tokens) - 1
        if len(known) > most or known != tokens[: len(known)]:
            agreed = next((i for i, (a, b) in enumerate(zip(known, tokens[:most])) if a != b), min(len(known), most))
            self.cached[slot], self.drafted[slot] = known[:agreed], {}

    def _taken(self, slot, tokens):
        """Return the drafted nodes on the sequence's path, root first, without the last token's: it is fed."""
        path = [0]
        for token in tokens[len(self.cached[slot]) : -1]:
            node = self.drafted[slot].get((path[-1], token))
            if node is None:
                break
            path.append(node)
        return path

    def _read(self, slot, tokens):
        states = None
        if self.target_cache is not None:
            states = lambda start, width: self.target_cache.states_before([start], width, slot)  # noqa: E731
        ids = [min(max(token, 0), self.model.vocab_size - 1) for token in tokens]
        read_tokens(self.model, ids, self.cache, slot, len(self.cached[slot]), self.prefill_chunk, states)
        self.cached[slot] = self.cached[slot] + tokens

    def _states(self, start, width, slot) -> dict:
        """Return forward's `states` argument as a dict, empty for a model that reads no states.

        They are the target's states that predicted the `width` tokens from `start` on, in slots from `slot` on.
        """
        if self.target_cache is None:
            return {}
        return dict(states=self.target_cache.states_before(start, width, slot))

    def _forward(self, ids, start, slot=None, **options):
        """Run the model. slot: the slot of the first row, by default the batch's first."""
        slot = self.first if slot is None else slot
        return self.model.forward(ids.clamp(0, self.model.vocab_size - 1), start, self.cache, slot, **options)


def _parents(branches: Branches, width: int) -> torch.Tensor:
    """Return the parents [n, width] of the nodes that a pass feeds."""
    parents = branches.parents
    nodes = upload(branches.first, parents.device)[:, None] + torch.arange(width, device=parents.device)
    return parents.gather(1, nodes.clamp(max=parents.shape[1] - 1)).long()
