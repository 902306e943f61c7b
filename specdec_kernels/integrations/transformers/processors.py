# SPDX-License-Identifier: Apache-2.0
"""transformers' logits processors as fields of the loop's requests: sampling parameters, and views of rows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from math import inf
from typing import Any

import numpy as np
import torch

__all__ = ["parameters"]

_NO_CHANGE = ("LogitNormalization",)  # does not change the distribution
_WARPERS = {
    "TemperatureLogitsWarper": "temperature",
    "TopKLogitsWarper": "top_k",
    "TopPLogitsWarper": "top_p",
    "MinPLogitsWarper": "min_p",
}
_PENALTY, _BIAS, _WORDS = "RepetitionPenaltyLogitsProcessor", "SequenceBiasLogitsProcessor", "NoBadWordsLogitsProcessor"
_SUPPRESS = "SuppressTokensLogitsProcessor"
_MINIMA = ("MinLengthLogitsProcessor", "MinNewTokensLengthLogitsProcessor")
_PREFIX = "PrefixConstrainedLogitsProcessor"
_FORCED = {"ForcedBOSTokenLogitsProcessor": "bos_token_id", "ForcedEOSTokenLogitsProcessor": "eos_token_id"}
# These forbid ids that depend on all tokens so far. Each is run on a row of zeros: ids that become -inf are forbidden.
_OTHERS = ("NoRepeatNGramLogitsProcessor", "SuppressTokensAtBeginLogitsProcessor")
_FORBID = (_WORDS, _SUPPRESS, *_MINIMA, *_FORCED, _PREFIX, *_OTHERS)
_OVERRULE = (*_FORCED, _PREFIX)  # these may allow ids that an earlier processor forbids
SERVED = (*_WARPERS, _PENALTY, _BIAS, *_FORBID, *_NO_CHANGE)


def parameters(
    op: str, processors: Any, do_sample: bool, input_ids: torch.Tensor, vocab_size: int, ends: dict[str, Any], mask: Any
) -> Callable[[int], dict[str, Any]]:
    """Return a function that returns, for row b of the batch, the fields of its request that the processors set.

    ends: max_new_tokens and eos of the requests. mask: the prompts' attention mask, or None.

    Raises:
        ValueError: the loop does not support a processor, a parameter of one, or their order.
    """
    kinds = [type(x).__name__ for x in processors]
    _check_order(op, kinds)
    overruled = any(kind in _OVERRULE for kind in kinds)
    found: dict[str, Any] = {"temperature": 1.0 if do_sample else 0.0}
    bias: dict[int, float] = {}
    chain: list[tuple[str, Any]] = []
    for kind, processor in zip(kinds, processors):
        if kind in _WARPERS:
            _check_warper(op, kind, processor)
            found |= {_WARPERS[kind]: getattr(processor, _WARPERS[kind])} if do_sample else {}
        elif kind == _PENALTY:
            _check_penalty(op, processor, mask, input_ids)
            found["repetition_penalty"] = processor.penalty
        elif kind == _BIAS:
            _add(bias, _biases(op, processor))
            chain += [(kind, processor)] * any(len(ids) > 1 for ids in processor.sequence_bias)
        elif kind in _MINIMA and not overruled and _ids(processor.eos_token_id) == {*ends["eos"]}:
            shortest = processor.min_length if kind == _MINIMA[0] else _after_skipped(processor)
            least = min(shortest - input_ids.size(1), ends["max_new_tokens"])
            found["min_tokens"] = max(found.get("min_tokens", 0), least)
        elif kind == _SUPPRESS and not overruled:
            _add(bias, {token: -inf for token in _ids(processor.suppress_tokens) if 0 <= token < vocab_size})
        elif kind == _WORDS and not overruled and all(len(ids) == 1 for ids in processor.sequence_bias):
            _add(bias, {token: -inf for (token,) in processor.sequence_bias})
        elif kind in _FORBID:
            _check_forced(op, kind, processor)
            chain.append((kind, processor))
    found |= {"logit_bias": bias} if bias else {}
    prompts = input_ids.detach()
    return lambda b: found | ({"allowed": _Chain(chain, prompts[b], b, vocab_size)} if chain else {})


def _check_order(op: str, kinds: list[str]) -> None:
    """Raise ValueError for a processor that is not supported, is given twice, or comes after one it must precede."""
    for kind in kinds:
        if kind not in SERVED:
            raise ValueError(f"{op}: logits_processor must be of {', '.join(SERVED)}, got {kind}")
        if kinds.count(kind) > 1 and kind not in _NO_CHANGE:
            raise ValueError(f"{op}: logits_processor must have each kind once, got {kind} {kinds.count(kind)} times")
    order = {_BIAS: 0, _PENALTY: 1, **dict.fromkeys(_WARPERS, 2), **dict.fromkeys(_FORBID, 1)}
    ranks = [(order[kind], kind) for kind in kinds if kind in order]
    for (first, before), (then, after) in combinations(ranks, 2):
        if then < first and (first == 2 or before == _PENALTY):
            raise ValueError(f"{op}: logits_processor must have {after} before {before}, got it after")


def _check_warper(op: str, kind: str, processor: Any) -> None:
    if _WARPERS[kind] in ("top_p", "min_p") and getattr(processor, "min_tokens_to_keep", 1) > 1:
        raise ValueError(f"{op}: min_tokens_to_keep must be 1, got {processor.min_tokens_to_keep} of {kind}")


def _check_penalty(op: str, processor: Any, mask: Any, input_ids: torch.Tensor) -> None:
    """Check that the penalty ignores no part of the prompt other than padding."""
    ignored = getattr(processor, "prompt_ignore_length", None)
    padding = (
        torch.zeros(len(input_ids), dtype=torch.int64, device="cpu")
        if mask is None
        else (mask.cpu() != 0).int().argmax(1)
    )
    if ignored is not None and not (torch.as_tensor(ignored).cpu() == padding).all():
        raise ValueError(f"{op}: prompt_ignore_length must be None or the padding, got {ignored!r:.80} of {_PENALTY}")


def _check_forced(op: str, kind: str, processor: Any) -> None:
    if kind in _FORCED and len(ids := _ids(getattr(processor, _FORCED[kind]))) != 1:
        raise ValueError(f"{op}: {_FORCED[kind]} must be one id, got {sorted(ids)} of {kind}")


def _biases(op: str, processor: Any) -> dict[int, float]:
    """Return the biases of single ids. Longer sequences may only be forbidden."""
    for ids, value in processor.sequence_bias.items():
        if len(ids) > 1 and value != -inf:
            raise ValueError(f"{op}: sequence_bias of several ids must be -inf, got {value} for {[*ids]}")
    return {int(ids[0]): value for ids, value in processor.sequence_bias.items() if len(ids) == 1}


def _add(bias: dict[int, float], more: dict[int, float]) -> None:
    """Add biases to those of other processors. Minus infinity stays minus infinity."""
    for token, value in more.items():
        bias[token] = bias.get(token, 0.0) + value


def _after_skipped(processor: Any) -> int:
    """Return the length of the whole sequence below which a MinNewTokensLengthLogitsProcessor forbids end tokens."""
    return int(processor.prompt_length_to_skip) + int(processor.min_new_tokens)


def _ids(x: Any) -> set[int]:
    return set(torch.as_tensor(x, device="cpu").flatten().tolist())


class _Chain:
    """A row's processors as `Request.allowed`: a function from an output to the mask of ids that they allow next.

    prompt: [T], padded as ``generate`` passes it. b: the row's index.
    """

    def __init__(self, processors: list[tuple[str, Any]], prompt: torch.Tensor, b: int, vocab_size: int):
        self.processors, self.prompt, self.b, self.vocab_size = processors, prompt, b, vocab_size

    def __call__(self, output: list[int]) -> np.ndarray | None:
        ids = torch.cat(
            [self.prompt, torch.tensor(output, dtype=self.prompt.dtype, device="cpu").to(self.prompt.device)]
        )[None]
        scores = torch.zeros(1, self.vocab_size, dtype=torch.float32, device=ids.device)
        for kind, processor in self.processors:
            scores = self._constrained(processor, ids, scores) if kind == _PREFIX else processor(ids, scores)
        kept = (scores[0] > -inf).cpu().numpy()
        if kept.all():
            return None
        kept = np.pad(kept, (0, -len(kept) % 32))
        return np.packbits(kept, bitorder="little").view(np.int32)

    def _constrained(self, processor: Any, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return scores after the prefix constraint. Its function is called with this row's index in the batch.

        If earlier processors forbid all ids that it allows, it overrules them.
        """
        allowed = processor._prefix_allowed_tokens_fn(self.b // processor._num_beams, ids[0])
        if len(allowed) == 0:
            raise ValueError("prefix_allowed_tokens_fn must allow at least one id, got none")
        mask = torch.full_like(scores, -inf)
        mask[:, allowed] = 0
        both = scores + mask
        return mask if bool((both == -inf).all()) else both
