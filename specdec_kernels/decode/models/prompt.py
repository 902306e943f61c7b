# SPDX-License-Identifier: Apache-2.0
"""Reading of prompts in chunks, since a pass's mask grows with its width times its number of keys."""

from ..parts import parts_of
from ..transfers import upload
from .slot_cache import SlotCache

__all__ = ["PREFILL_CHUNK", "read_tokens", "set_prefill_chunk"]

PREFILL_CHUNK = 512  # default tokens of a pass


def read_tokens(model, tokens: list[int], cache: SlotCache, slot=0, start=0, chunk=PREFILL_CHUNK, states=None) -> None:
    """Write the keys of `tokens` to a slot from position `start` on, at most `chunk` tokens per pass.

    Args:
        model: a Model (adapters.py), to which `cache` belongs.
        states: (start, width) -> the states [1, width, d] for a model that reads states; None: no states.
    """
    for first in range(0, len(tokens), chunk):
        piece, at = tokens[first : first + chunk], start + first
        given = {} if states is None else {"states": states(at, len(piece))}
        model.forward(upload([piece], model.device), [at], cache, slot, keep=None, **given)


def set_prefill_chunk(drafter, chunk: int) -> None:
    """Set `prefill_chunk` of every part of a drafter that reads prompts with a model."""
    for part in parts_of(drafter):
        if hasattr(part, "prefill_chunk"):
            part.prefill_chunk = chunk
