# SPDX-License-Identifier: Apache-2.0
"""Draft models whose logits cover another vocabulary than the target's."""

from typing import Any

import torch

import specdec_kernels as sk

from .slot_cache import SlotCache

__all__ = ["MatchedModel", "common_tokens", "written_out"]


def written_out(logits: torch.Tensor, vocab_map: sk.VocabMap | None) -> torch.Tensor:
    """Return logits [..., Vd] over draft ids as [..., V] over target ids, -inf at ids that no draft id maps to.

    If several draft ids map to one target id, their largest logit is kept. (Verification adds their probabilities.)
    Without a map: the logits themselves.
    """
    if vocab_map is None:
        return logits
    table, lead = vocab_map.table, logits.shape[:-1]
    full = logits.new_full((*lead, vocab_map.vocab + 1), -torch.inf)
    ids = torch.where(table < 0, vocab_map.vocab, table).long().expand(*lead, -1)
    return full.scatter_reduce_(-1, ids, logits, "amax")[..., :-1]


def common_tokens(target: dict[str, int], draft: dict[str, int]) -> torch.Tensor:
    """Return for each draft id the id of the target's token with the same text, or -1: int32 [Vd].

    Args:
        target, draft: the ids of both vocabularies by the tokens' text, as tokenizers' get_vocab() returns them.
    """
    table = torch.full((max(draft.values()) + 1,), -1, dtype=torch.int32, device="cpu")
    for text, id in draft.items():
        table[id] = target.get(text, -1)
    return table


class MatchedModel:
    """A draft model with another vocabulary than the target's.

    The loop passes target ids, and ``forward`` feeds the model their draft ids. It returns logits over draft ids. It
    neither reads nor keeps states.

    Verification is exact for any table, since a draft is verified against the distribution that it was drawn from.
    Tokens of the target that the draft lacks are fed as `unknown`, which only costs acceptance.

    Args:
        model: a Model (adapters.py).
        table: [Vd] int32 or int64, the target's id of each draft id; negative: none. The model may have more ids.
        vocab_size: V, the number of target ids.
        unknown: the draft id that stands for all tokens that only the target has.

    Raises:
        ValueError: no draft id has a target id, the table is longer than the model's logits, or an id is V or more.
    """

    def __init__(self, model: Any, table: torch.Tensor, vocab_size: int, unknown: int = 0):
        if not (table >= 0).any():
            raise ValueError("MatchedModel: table must have an id of the target, got none")
        if len(table) > model.vocab_size:
            wanted = f"table must have at most Vd={model.vocab_size} ids, as the model's logits"
            raise ValueError(f"MatchedModel: {wanted}, got {len(table)}")
        # A model may have more columns than its tokenizer has ids.
        table = torch.nn.functional.pad(table.to(model.device), (0, model.vocab_size - len(table)), value=-1)
        self.model, self.vocab_size = model, vocab_size
        self.vocab_map = sk.vocab_map(table, vocab_size)
        known = (table >= 0).nonzero()[:, 0].flip(0)  # of several draft ids the lowest is fed
        self.draft_ids = torch.full((vocab_size,), unknown, dtype=torch.int64, device=model.device)
        self.draft_ids[table[known].long()] = known
        self.max_positions, self.device, self.dtype = model.max_positions, model.device, model.dtype
        self.refuses, self.position_note = getattr(model, "refuses", {}), getattr(model, "position_note", "")
        self.state_size, self.reads_states = None, False

    def new_cache(self, slots: int, capacity: int) -> SlotCache:
        return self.model.new_cache(slots, capacity)

    def forward(self, ids, start, cache, slot=0, keep="all", branches=None):
        """Run one pass, as Model.forward does, over target ids."""
        own = torch.where(ids < 0, ids, self.draft_ids[ids.clamp(min=0)])
        return self.model.forward(own, start, cache, slot, keep, branches)
