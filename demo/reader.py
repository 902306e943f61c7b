# SPDX-License-Identifier: Apache-2.0
"""Logits of both models along one text."""

import torch

from specdec_kernels.decode.models.vocabulary import written_out


class Reader:
    """Reader of one sequence with both models of a pair.

    A draft model that reads states gets the target's state before every token. In the loop this holds only for the
    first token of a draft.
    """

    def __init__(self, pair, capacity):
        self.models = target, draft = pair.target, pair.draft
        self.caches = [m.new_cache(1, capacity) for m in self.models]
        self.states = draft.reads_states
        if self.states:
            self.caches[0].keep_states(target.state_size, target.dtype, target.device)

    @torch.inference_mode()
    def __call__(self, tokens, start, keep="all"):
        """Read tokens -> the logits [n, V] float32 of the target, and of the draft by the target's ids.

        tokens: those of the sequence from position `start` on. keep: as in Model.forward; None returns None.
        """
        (target, draft), (read, drafted), ids = self.models, self.caches, torch.tensor([tokens])
        z = target.forward(ids, [start], read, keep=keep)
        states = {"states": read.states_before([start], len(tokens))} if self.states else {}
        y = draft.forward(ids, [start], drafted, keep=keep, **states)
        if keep is None:
            return None
        y = written_out(y, getattr(draft, "vocab_map", None))
        return tuple(x.flatten(0, -2).float() for x in (z, y))
