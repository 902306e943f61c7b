# SPDX-License-Identifier: Apache-2.0
"""The sampling parameters, biases, penalties and masks of V2's requests, as arguments of ``Rows``.

vLLM's sampler keeps them in tensors by request slot. They are looked up on the device, in shapes that the host knows,
so nothing waits. Lists and masks are made for each of a step's R rows of logits [R, V].
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from specdec_kernels.allowed import Allowed
from specdec_kernels.bias import Bias
from specdec_kernels.ops.row_stats import row_stats
from specdec_kernels.penalties import Penalties
from specdec_kernels.rows import Rows

MOST_USED = 16_384  # distinct tokens of a request: the most for which the CUDA ops support penalties by tables


class Step(NamedTuple):
    """One call of vLLM's ``_verify``: B requests in slots of its sampler, with R rows of logits."""

    sampler: Any
    logits: torch.Tensor  # [R, V]
    used: np.ndarray  # [B], the requests' slots, on the host
    slot: torch.Tensor  # [B] int64
    request: torch.Tensor  # [R] int64, the request of each row
    local: torch.Tensor  # [R] int64, the row's index in its request: the number of drafts before it
    ids: torch.Tensor  # [R], the token before each row: a draft if local > 0
    position: torch.Tensor  # [R], the position of that token
    num_drafts: int  # K, the largest number of drafts of a request

    @property
    def row_slot(self) -> torch.Tensor:
        return self.slot[self.request]

    def tokens_at(self, position: torch.Tensor) -> torch.Tensor:
        """Return the tokens at positions [R, n] of each row's text, which includes the drafts."""
        state = self.sampler.req_states
        texts, committed = state.all_token_ids.gpu, state.total_len.gpu[self.row_slot][:, None]
        kept = texts[self.row_slot[:, None], position.clamp(0, texts.size(1) - 1)]
        row = torch.arange(self.local.size(0), device=self.local.device)
        draft = (row - self.local)[:, None] + 1 + position - committed
        return torch.where(position < committed, kept, self.ids[draft.clamp(0, self.ids.size(0) - 1)])


def step(
    sampler: Any,
    logits: torch.Tensor,
    used: np.ndarray,
    slot: torch.Tensor,
    cu_num_logits: torch.Tensor,
    ids: torch.Tensor,
    position: torch.Tensor,
    num_drafts: int,
) -> Step:
    """Return the Step of a call of ``_verify``. Rows after those of the last request count as its own."""
    ends = cu_num_logits.to(torch.int64)
    row = torch.arange(logits.size(0), device=logits.device)
    request = torch.searchsorted(ends[1:].contiguous(), row, right=True).clamp(max=slot.size(0) - 1)
    return Step(sampler, logits, used, slot.to(torch.int64), request, row - ends[request], ids, position, num_drafts)


def sampling(states: Any, used: np.ndarray, slot: torch.Tensor) -> dict[str, Any]:
    """Return temperature, top-k, top-p and min-p of slots [n], without filters that no slot in `used` [B] has on."""
    off = {"top_k": states.vocab_size, "top_p": 1.0, "min_p": 0.0}
    on = [name for name, x in off.items() if (getattr(states, name).np[used] != x).any()]
    return {name: getattr(states, name).gpu[slot] for name in ("temperature", *on)}


def chains(of: Step, row: torch.Tensor) -> Rows:
    """Return the target's rows for ``verify_chain``. row [B, K+1]: the index of each position's row of logits."""
    place = row.clamp(max=of.logits.size(0) - 1)
    bias, allowed = bias_and_mask(of)
    return Rows(
        of.logits,
        row=row,
        penalties=penalties(of, of.slot),
        bias=bias and bias._replace(row=place),
        allowed=allowed and allowed._replace(row=place if allowed.row is None else allowed.row[place]),
        **sampling(of.sampler.sampling_states, of.used, of.slot),
    )


def flat(of: Step) -> Rows:
    """Return rows [R, V] for ``support``, each with the penalties after the drafts before it.

    Rows of greedy requests get temperature 1, at which vLLM filters them.
    """
    taken = sampling(of.sampler.sampling_states, of.used, of.row_slot)
    taken["temperature"] = torch.where(taken["temperature"] == 0, 1.0, taken["temperature"])
    seen = penalties(of, of.row_slot)
    if seen is not None:
        before = torch.arange(of.num_drafts, device=of.local.device)
        first = torch.arange(of.local.size(0), device=of.local.device) - of.local
        place = (first[:, None] + 1 + before).clamp(max=of.ids.size(0) - 1)
        seen = seen._replace(drafted=torch.where(before < of.local[:, None], of.ids[place], -1))
    bias, allowed = bias_and_mask(of)
    return Rows(of.logits, penalties=seen, bias=bias, allowed=allowed, **taken)


def penalties(of: Step, slot: torch.Tensor) -> Penalties | None:
    """Return the penalties of these slots, by vLLM's own counts and prompt bits; None if no request has any."""
    state = of.sampler.penalties_state
    if not state.use_penalty[of.used].any():
        return None
    return Penalties(
        state.repetition_penalty.gpu[slot],
        state.frequency_penalty.gpu[slot],
        state.presence_penalty.gpu[slot],
        counts=state.output_bin_counts,
        prompt_bits=state.prompt_bin_mask,
        row=slot,
    )


def bias_and_mask(of: Step) -> tuple[Bias | None, Allowed | None]:
    """Return the biases and masks of the R rows: logit bias, minimum lengths, bad words, allowed ids, and end markers.

    A row at which a thinking budget is spent allows only the next token of the end marker, and has no biases.
    """
    state = of.sampler.logits_processors[0]
    given, forced = allowed_ids(of, state), spent_budget(of)
    added = biases(of, state)
    lists = [x for x in (added, stop_ids(of, state, added, given), bad_words(of)) if x is not None]
    if not lists:
        return None, _masks(of, given, forced)
    bias = joined(lists)
    if forced is not None:
        bias = bias._replace(ids=torch.where(forced[:, None] < 0, bias.ids, -1))
    return bias, _masks(of, given, forced)


def joined(lists: list[Bias]) -> Bias:
    """Return biases whose lists hold the entries of all these lists, row by row."""
    return Bias(torch.cat([x.ids for x in lists], 1), torch.cat([x.values for x in lists], 1))


def biases(of: Step, state: Any) -> Bias | None:
    """Return the rows' logit biases, [R, I]."""
    most = int(state.num_logit_bias.np[of.used].max())
    if most == 0:
        return None
    slot = of.row_slot
    ids = _listed(state.logit_bias_token_ids.gpu, state.num_logit_bias.gpu, slot, most)
    return Bias(ids, state.logit_bias.gpu[:, :most][slot])


def stop_ids(of: Step, state: Any, added: Bias | None, given: Allowed | None) -> Bias | None:
    """Return minus infinity for the stop ids of rows that are before their request's minimum length.

    Under a grammar vLLM lets a row keep its stop ids if biases and masks leave it no other token.
    """
    most = int(state.num_stop_token_ids.np[of.used].max())
    if most == 0:
        return None
    slot = of.row_slot
    ids = _listed(state.stop_token_ids.gpu, state.num_stop_token_ids.gpu, slot, most)
    ids = torch.where((of.position + 1 < state.min_lens.gpu[slot])[:, None], ids, -1)
    stop = Bias(ids, torch.full_like(ids, -math.inf, dtype=torch.float32))
    if not state.restore_when_all_masked.np[of.used].any():
        return stop
    stats = row_stats(Rows(of.logits, bias=joined([stop] if added is None else [added, stop]), allowed=given))
    empty = (stats[:, 3] == -math.inf) & (state.restore_when_all_masked.gpu[slot] != 0)
    return stop._replace(ids=torch.where(empty[:, None], -1, ids))


def bad_words_added(upstream: Callable, self: Any, req_idx: int, sampling_params: Any) -> bool:
    """Replacement of ``BadWordsState.add_request``: store on the host how many ids each slot's words have."""
    if not hasattr(self, "specdec_lengths"):
        self.specdec_lengths = np.full(len(self.num_bad_words.np), self.bad_word_token_ids.gpu.size(1))
    added = upstream(self, req_idx, sampling_params)
    self.specdec_lengths[req_idx] = sum(map(len, sampling_params.bad_words_token_ids or ()))
    return added


def bad_words(of: Step) -> Bias | None:
    """Return minus infinity for the last token of each bad word whose other tokens end the output before the row."""
    state, texts = of.sampler.logits_processors[2], of.sampler.req_states
    most = int(state.num_bad_words.np[of.used].max())
    if most == 0:
        return None
    slot, lengths = of.row_slot, getattr(state, "specdec_lengths", None)
    T = state.bad_word_token_ids.gpu.size(1) if lengths is None else max(1, int(lengths[of.used].max()))
    tokens = state.bad_word_token_ids.gpu[:, :T][slot]  # [R, T], a request's words one after another
    number = state.num_bad_words.gpu[slot][:, None]
    ends = state.bad_word_offsets.gpu[:, 1 : most + 1][slot].cummax(1).values  # ascending after the last word too
    place = torch.arange(tokens.size(1), device=slot.device).expand_as(tokens).to(ends.dtype)
    word = torch.searchsorted(ends, place.contiguous(), right=True)  # [R, T], `most` after the last word
    to_end = ends.gather(1, word.clamp(max=most - 1)) - 1 - place  # 0 at a word's last token
    at = (texts.total_len.gpu[slot] + of.local)[:, None] - to_end
    needed = (word < most) & (to_end > 0)
    wrong = (at < texts.prompt_len.gpu[slot][:, None]) | (of.tokens_at(torch.where(needed, at, 0)) != tokens)
    misses = torch.zeros((len(slot), most + 1), dtype=torch.int32, device=slot.device)
    misses.scatter_add_(1, word, (wrong & needed).to(torch.int32))
    banned = (misses[:, :most] == 0) & (torch.arange(most, device=slot.device) < number)
    last = tokens.gather(1, (ends - 1).clamp(0, T - 1).to(torch.int64))
    ids = torch.where(banned, last, -1)
    return Bias(ids, torch.full_like(ids, -math.inf, dtype=torch.float32))


def allowed_ids(of: Step, state: Any) -> Allowed | None:
    """Return the masks of the requests' allowed ids, [B, W], with the index of each row's mask [R]."""
    most = int(state.num_allowed_token_ids.np[of.used].max())
    if most == 0:
        return None
    number, V = state.num_allowed_token_ids.gpu, of.logits.size(1)
    ids = _listed(state.allowed_token_ids.gpu, number, of.slot, most).to(torch.int64).sort(1).values
    repeated = torch.nn.functional.pad(ids[:, 1:] == ids[:, :-1], (1, 0))
    bit = torch.where(repeated | (ids < 0) | (ids >= V), 0, 1 << (ids % 32)).to(torch.int32)
    bits = torch.zeros((len(of.used), -(-V // 32)), dtype=torch.int32, device=ids.device)
    bits.scatter_add_(1, (ids // 32).clamp(0, bits.size(1) - 1), bit)
    has = number[of.slot] > 0
    return Allowed(bits, torch.where(has[of.request], of.request, -1))


def spent_budget(of: Step) -> torch.Tensor | None:
    """Return the id [R] that a row must emit because its thinking budget is spent; -1: any.

    It is the next token of the end marker, whose first tokens may already be in the text before the row.
    """
    state, texts = of.sampler.thinking_budget_state, of.sampler.req_states
    if not state.enabled or not state.use_thinking_budget[of.used].any():
        return None
    start, natural = state.reasoning_start_token_ids, state.natural_reasoning_end_token_ids
    end, slot = state.reasoning_end_token_ids, of.row_slot
    # vLLM's own function finds the markers in the committed text. It gets no rows that it could write to.
    sys.modules[type(state).__module__].apply_thinking_budget(
        of.logits[:0], of.slot, slot[:0], state.thinking_token_budget.gpu, texts.all_token_ids.gpu,
        texts.total_len.gpu, of.ids[:0], of.local[:0], state.cached_last_start, state.cached_last_end,
        state.cached_scan_pos, start, natural, end,
    )  # fmt: skip
    committed = texts.total_len.gpu[slot].to(torch.int64)
    length, budget = committed + of.local, state.thinking_token_budget.gpu[slot]

    def last(marker: torch.Tensor, cached: torch.Tensor) -> torch.Tensor:
        """Return where the marker last begins before each row, in the committed text or reaching into the drafts."""
        n, found = len(marker), cached[slot].to(torch.int64)
        begin = (committed - n + 1)[:, None] + torch.arange(of.num_drafts, device=slot.device)
        same = (begin >= 0) & (begin <= (length - n)[:, None])
        for i in range(n):
            same &= of.tokens_at(begin + i) == marker[i]
        return found.maximum(torch.where(same, begin, -1).amax(1))

    begun, ended = last(start, state.cached_last_start), last(natural, state.cached_last_end)
    spent = (budget >= 0) & (begun >= 0) & (begun > ended) & (length - begun - len(start) >= budget)
    before = of.tokens_at((length - len(end) + 1)[:, None] + torch.arange(len(end) - 1, device=slot.device))
    written = torch.zeros_like(length)
    for n in range(1, len(end)):
        same = (before[:, len(end) - 1 - n :] == end[:n]).all(1) & (length >= n)
        written = torch.where(same, n, written)
    return torch.where(spent, end[written].to(torch.int64), -1)


def _listed(lists: torch.Tensor, number: torch.Tensor, slot: torch.Tensor, most: int) -> torch.Tensor:
    """Return the first `most` entries of these slots' lists, with -1 after each list's end."""
    column = torch.arange(most, device=slot.device)
    return torch.where(column < number[slot][:, None], lists[:, :most][slot], -1)


def _masks(of: Step, given: Allowed | None, forced: torch.Tensor | None) -> Allowed | None:
    """Return the masks of allowed ids, replaced by the forced id alone in rows that have one."""
    if forced is None:
        return given
    R, W = len(forced), -(-of.logits.size(1) // 32)
    first = 0 if given is None else given.bits.size(0)
    bits = torch.zeros((first + R, W), dtype=torch.int32, device=forced.device)
    id = forced.clamp(min=0)[:, None]
    bits[first:].scatter_(1, id // 32, (1 << (id % 32)).to(torch.int32))
    row = torch.full_like(forced, -1)
    if given is not None and given.row is not None:
        bits[:first], row = given.bits, given.row
    return Allowed(bits, torch.where(forced >= 0, first + torch.arange(R, device=forced.device), row))
