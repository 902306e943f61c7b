# SPDX-License-Identifier: Apache-2.0
"""Penalties, biases and masks of V1's requests, as views of rows that the ops apply while they read a row.

logit_bias, bad words and min_tokens are a Bias; allow-lists, grammars and thinking budgets are masks; penalties read
lists of the tokens used. Rows are numbered as in the step's logits [R, V]; R = D+B for D drafts that vLLM scheduled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import pad

from specdec_kernels.allowed import Allowed
from specdec_kernels.bias import Bias
from specdec_kernels.integrations.vllm import histories, thinking
from specdec_kernels.integrations.vllm.upload import on
from specdec_kernels.ops.support import support
from specdec_kernels.penalties import Penalties
from specdec_kernels.rows import Rows


@dataclass(frozen=True)
class Views:
    """The views of a step's rows. The `row` of bias and allowed has an entry for each row of the logits [R, V]."""

    penalties: Penalties | None = None
    bias: Bias | None = None
    allowed: Allowed | None = None

    def at(self, row: torch.Tensor | None) -> dict[str, Any]:
        """Return arguments of Rows. row: the index of each position's row of logits; None: position i has row i."""
        bias, allowed = self.bias, self.allowed
        if row is not None:
            bias = bias and bias._replace(row=index(bias)[row])
            allowed = allowed and allowed._replace(row=index(allowed)[row])
        return {"penalties": self.penalties, "bias": bias, "allowed": allowed}


def of_step(
    scheduled: Any,
    logits: torch.Tensor,
    sampling_metadata: Any,
    grammar: Allowed | None,
    texts: histories.Texts | None = None,
) -> Views:
    """Return the views of a step's rows.

    Args:
        scheduled: SpecDecodeMetadata of the drafts that vLLM scheduled.
        logits: the model's rows [R, V]; they are read only if a request has min_tokens and a grammar.
        sampling_metadata: SamplingMetadata.
        grammar: the grammars' masks, with the index of each row's mask [R].
        texts: the requests' texts, whose lists of tokens are kept from step to step; None: penalties make them anew.
    """
    counts = np.array(scheduled.num_draft_tokens, dtype=np.int64) + 1
    masks = allowed(counts, logits.device, sampling_metadata, grammar)
    forced = thinking.forced(scheduled, sampling_metadata)
    added = bias(counts, logits, sampling_metadata, masks)
    if forced is not None:  # the forced token overrides other masks and biases
        masks = with_forced(masks, forced, logits)
        added = added and added._replace(row=index(added).index_fill(0, forced.row, -1))
    return Views(penalties(sampling_metadata, logits.size(1), texts), added, masks)


def penalties(sampling_metadata: Any, V: int, texts: histories.Texts | None = None) -> Penalties | None:
    """Return the requests' penalties, with the tokens of their prompts and outputs; None if no request has one."""
    if sampling_metadata.no_penalties:
        return None
    prompt, given = sampling_metadata.prompt_token_ids, sampling_metadata.output_token_ids
    if texts is not None:
        ids, counts = (on(x, prompt.device) for x in texts.lists(given, V))
    else:
        output = np.full((len(given), max(map(len, given), default=0)), -1, dtype=np.int64)
        for b, tokens in enumerate(given):
            output[b, : len(tokens)] = tokens
        ids, counts = history(prompt, on(output, prompt.device), V)
    named = ("repetition", "frequency", "presence")
    values = {name: getattr(sampling_metadata, f"{name}_penalties") for name in named}
    return Penalties(**values, ids=ids, counts=counts)


def history(prompt: torch.Tensor, output: torch.Tensor, V: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the lists ids, counts [B, H] int32 that Penalties reads, of prompt [B, P] and output [B, O].

    Entries outside [0, V) are pads. Shapes do not depend on the tokens, so nothing waits for the device.
    """
    tokens = torch.cat([prompt.to(torch.int64), output], 1)
    tokens, source = tokens.where((tokens >= 0) & (tokens < V), V).sort(1)  # pads last
    is_first = torch.diff(tokens, dim=1, prepend=tokens.new_full((tokens.size(0), 1), -1)) > 0
    place = is_first.to(torch.int64).cumsum(1) - 1
    ids = torch.full_like(tokens, V).scatter_(1, place, tokens)
    is_output = (source >= prompt.size(1)).to(torch.int64)
    counts = torch.zeros_like(tokens).scatter_add_(1, place, is_output)
    kept = (x[:, : max(V, 1)].to(torch.int32).contiguous() for x in (ids.where(ids < V, -1), counts.where(ids < V, 0)))
    return tuple(kept)  # type: ignore[return-value]


class Asked(NamedTuple):
    """A request's logit_bias, bad words and min_tokens, by token ids."""

    added: dict[int, float]  # logit_bias
    bad_words: list[list[int]]
    ends: frozenset[int]  # the ids that min_tokens forbids
    until: int  # min_tokens: as long as the output is shorter, `ends` are forbidden
    output: Sequence[int]
    drafts: Sequence[int]
    grammar: bool  # whether it has a grammar

    def forbidden(self, i: int) -> tuple[int, ...]:
        """Return the ids that complete a bad word after i drafts."""
        longest = max(map(len, self.bad_words), default=1) - 1
        before = [*self.output[max(len(self.output) - longest, 0) :], *self.drafts[:i]]
        words = (word for word in self.bad_words if len(word) <= len(before) + 1)
        return tuple(word[-1] for word in words if before[len(before) - len(word) + 1 :] == word[:-1])

    def lists(self, rows: int) -> Iterator[tuple[dict[int, float], dict[int, float]]]:
        """Yield for each row two {id: bias}: with min_tokens, and without it."""
        for i in range(rows):
            without = self.added | dict.fromkeys(self.forbidden(i), -np.inf)
            early = len(self.output) + i < self.until
            yield (without | dict.fromkeys(self.ends, -np.inf) if early else without), without


def asked(counts: np.ndarray, sampling_metadata: Any) -> dict[int, Asked]:
    """Return {request: its Asked} for the requests that have any of the three."""
    added: dict[int, dict[int, float]] = {}
    short: dict[int, tuple] = {}
    for processor in sampling_metadata.logitsprocs.non_argmax_invariant:
        added |= getattr(processor, "biases", {})
        short |= getattr(processor, "min_toks", {})
    bad, output = sampling_metadata.bad_words_token_ids, sampling_metadata.output_token_ids
    drafts = sampling_metadata.spec_token_ids or [[] for _ in counts]
    found = {}
    for b in sorted({*added, *short, *bad}):
        until, tokens, ends, grammar = short.get(b, (0, output[b] if output else [], (), False))
        found[b] = Asked(added.get(b, {}), bad.get(b, []), frozenset(ends), until, tokens, drafts[b], grammar)
    return found


def bias(counts: np.ndarray, logits: torch.Tensor, sampling_metadata: Any, masks: Allowed | None) -> Bias | None:
    """Return logit_bias, bad words and min_tokens of B requests with counts [B] rows; None if there are none.

    vLLM lifts min_tokens in a row if its grammar allows no other token than those that min_tokens forbids.
    """
    requests = asked(counts, sampling_metadata)
    first = counts.cumsum() - counts
    row = np.full(int(counts.sum()), -1, dtype=np.int64)
    instead = row.copy()  # the lists without min_tokens
    lists: dict[tuple, int] = {}
    place = lambda values: lists.setdefault(tuple(values.items()), len(lists)) if values else -1
    for b, of in requests.items():
        for r, (values, without) in enumerate(of.lists(int(counts[b])), int(first[b])):
            row[r], instead[r] = place(values), place(without if of.grammar else values)
    if not lists:
        return None
    size = max(map(len, lists))
    ids, values = np.full((len(lists), size), -1, dtype=np.int64), np.zeros((len(lists), size), dtype=np.float32)
    for i, items in enumerate(lists):
        ids[i, : len(items)], values[i, : len(items)] = zip(*items, strict=True)
    found = Bias(*(on(x, logits.device) for x in (ids, values, row)))
    if np.array_equal(row, instead):
        return found
    kept = support(Rows(logits, bias=found, allowed=masks), 0).counts
    return found._replace(row=index(found).where(kept > 0, on(instead, logits.device)))


def packed(mask: torch.Tensor) -> torch.Tensor:
    """Return words [B, ceil(V / 32)] int32 whose bits are set where mask [B, V] is False."""
    B, V = mask.shape
    words = torch.zeros(B, -(-V // 32), dtype=torch.int32, device=mask.device)
    for bit in range(min(32, V)):
        column = mask[:, bit::32]
        words[:, : column.size(1)] |= (~column).to(torch.int32) << bit
    return words


def allowed(
    counts: np.ndarray, device: torch.device, sampling_metadata: Any, grammar: Allowed | None
) -> Allowed | None:
    """Return the masks of allow-lists and grammars; None if there are none."""
    mask = sampling_metadata.allowed_token_ids_mask
    if mask is None:
        return grammar
    if getattr(sampling_metadata, "specdec_packed", None) is None:  # vLLM makes new metadata if the batch changes
        sampling_metadata.specdec_packed = packed(mask)
    words = sampling_metadata.specdec_packed
    request = on(np.repeat(np.arange(len(counts)), counts), device)
    if grammar is None:
        return Allowed(words, request)
    width = min(words.size(1), grammar.bits.size(1))
    row = index(grammar)
    both = grammar.bits[row, :width] & words[request, :width]  # rows without a grammar do not use theirs
    none = torch.arange(len(request), device=device) + words.size(0)
    return Allowed(torch.cat([words[:, :width], both]), request.where(row < 0, none))


def with_forced(masks: Allowed | None, forced: thinking.Forced, logits: torch.Tensor) -> Allowed:
    """Return masks that allow only the forced token in rows that have one."""
    R, V = logits.shape
    alone = torch.zeros(len(forced.row), -(-V // 32), dtype=torch.int32, device=logits.device)
    bit = (torch.ones_like(forced.ids) << forced.ids % 32).to(torch.int32)
    alone.scatter_(1, forced.ids[:, None] // 32, bit[:, None])
    if masks is None:
        masks = Allowed(alone[:0], torch.full((R,), -1, dtype=torch.int64, device=logits.device))
    others = pad(masks.bits, (0, alone.size(1) - masks.bits.size(1)))  # ids beyond the last word are forbidden
    number = torch.arange(len(forced.row), device=logits.device) + others.size(0)
    return Allowed(torch.cat([others, alone]), index(masks).index_copy(0, forced.row, number))


def index(view: Bias | Allowed) -> torch.Tensor:
    """Return the index of each row's list or mask, which every view in this module has."""
    assert view.row is not None
    return view.row
