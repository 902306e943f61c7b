# SPDX-License-Identifier: Apache-2.0
"""Prompts read in chunks: the mask of a pass grows with its width times all that it sees."""

from ..parts import parts_of
from ..transfers import upload
from .slot_cache import SlotCache

__all__ = ["PREFILL_CHUNK", "read_tokens", "set_prefill_chunk"]

PREFILL_CHUNK = 512  # tokens of a pass, where nobody says otherwise


def read_tokens(model, tokens: list[int], cache: SlotCache, slot=0, start=0, chunk=PREFILL_CHUNK, states=None) -> None:
    """Leave the keys of `tokens` in a slot from position `start` on, at most `chunk` of them a pass.

    Args:
        model: a Model (adapters.py); with a cache of its own, `cache`.
        states: (start, width) -> the states [1, width, d] that a model which reads states is given; None: without.
    """
    for first in range(0, len(tokens), chunk):
        piece, at = tokens[first : first + chunk], start + first
        given = {} if states is None else {"states": states(at, len(piece))}
        model.forward(upload([piece], model.device), [at], cache, slot, keep=None, **given)


def set_prefill_chunk(drafter, chunk: int) -> None:
    """Of all that a drafter is made of and that reads prompts with a model."""
    for part in parts_of(drafter):
        if hasattr(part, "prefill_chunk"):
            part.prefill_chunk = chunk
