# SPDX-License-Identifier: Apache-2.0
"""The rejection sampler of vLLM's V1 runner by verify_chain.

vLLM's target rows [D+B, V], with a bonus row after each request's drafts, are verify_chain's ragged layout. One call
applies the requests' parameters and views, tests the drafts and draws the final tokens, directly on the model's rows.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad

from specdec_kernels.integrations.vllm import cut, fallback, histories, metrics, processors, views
from specdec_kernels.integrations.vllm.grammar import Grammar
from specdec_kernels.integrations.vllm.keys import keys
from specdec_kernels.integrations.vllm.logprobs import logprobs
from specdec_kernels.integrations.vllm.upload import on
from specdec_kernels.ops.row_stats import row_stats
from specdec_kernels.ops.verify_chain import verify_chain
from specdec_kernels.rows import Rows

# vLLM's methods as arguments of verify_chain; the first two keep the target's distribution
METHODS: dict[str, dict] = {"standard": {}, "block": {"method": "block"}, "synthetic": {"rule": "synthetic"}}
METHODS["race"] = {"method": "race"}  # keeps the target's distribution too, and does not read the draft's
EXACT = ("standard", "block")
# the arguments of rejection_sample after sampling_metadata, in order
RATES, FLY = ("synthetic_mode", "synthetic_conditional_rates"), ("fly_window_size", "fly_entropy_threshold")
MORE = (*RATES, "use_fp64_gumbel", *FLY, "fly_entropy_top_k")


@dataclass(frozen=True)
class Step:
    """A step's data that vLLM's runner does not pass to the rejection sampler."""

    offset: torch.Tensor  # [B] int64, the position of each request's first row; in a race of its first emitted token
    draft_kind: str  # kind of the draft's rows: "logits" if our drafter drew from them, else "probs"
    scheduled: Any  # SpecDecodeMetadata of the drafts that vLLM scheduled
    drafts: cut.Drafts  # the drafts that are verified, including cut ones
    was_cut: np.ndarray  # [B] bool, whether a request's draft is one longer than scheduled
    grammar: Grammar | None = None
    seed: torch.Tensor | None = None  # [B] int64, for a race; None: seeds come from `keys`
    texts: histories.Texts | None = None  # None: no request has a penalty


def made(self: Any, spec_config: Any) -> None:
    """Store a rejection sampler's configuration in it."""
    self.specdec_method = getattr(spec_config, "rejection_sample_method", "standard")
    self.specdec_step = None


def is_exact(self: Any, sampling_metadata: Any) -> bool:
    """Return whether drafts are tested against the distributions they were drawn from, not by rates or argmax only."""
    return self.specdec_method in EXACT and not sampling_metadata.all_greedy


def why_not(self: Any, metadata: Any, logits: torch.Tensor, sampling_metadata: Any) -> str | None:
    """Return why verify_chain alone cannot do this step, so that vLLM must prepare its rows; None if it can.

    The reason is a label of vLLM's metrics, so it names nothing that varies from step to step.
    """
    if self.specdec_method not in METHODS:
        return f"rejection_sample_method {self.specdec_method}"
    if self.is_processed_logprobs_mode and sampling_metadata.max_num_logprobs is not None:
        return "processed logprobs"
    procs = sampling_metadata.logitsprocs
    for known, kinds in (
        (("min_p_count",), procs.argmax_invariant),
        (("min_toks", "biases"), procs.non_argmax_invariant),
    ):
        for processor in kinds:
            if not any(hasattr(processor, name) for name in known):
                return f"a logits processor that is not known, {type(processor).__name__}"
    rows = sum(metadata.num_draft_tokens) + len(metadata.num_draft_tokens)
    return None if logits.size(0) == rows else "another number of rows of logits than of drafts and bonus tokens"


def forward(
    upstream: Callable,
    self: Any,
    metadata: Any,
    draft_probs: torch.Tensor | None,
    logits: torch.Tensor,
    sampling_metadata: Any,
) -> Any:
    """Replacement of ``RejectionSampler.forward``: return vLLM's SamplerOutput from the raw logits [D+B, V].

    In a step of the patched runner, metadata includes the drafts that vLLM cut, and draft_probs are the drafter's rows
    [S, K, V], looked up by index.
    """
    step, exact = self.specdec_step, is_exact(self, sampling_metadata)
    scheduled = metadata if step is None else step.scheduled
    drawn_here = step is not None and step.draft_kind == "logits" and not sampling_metadata.all_greedy
    if drawn_here and draft_probs is None and exact:
        metadata = copy(metadata)  # the runner no longer has the drafts' rows, so no exact test is possible
        metadata.draft_token_ids = torch.full_like(metadata.draft_token_ids, -1)
    reason = why_not(self, scheduled, logits, sampling_metadata)
    if reason is not None:
        if self.specdec_method == "race":  # its drafts share noise with later draws, so vLLM cannot test them exactly
            metadata = copy(metadata)
            metadata.draft_token_ids = torch.full_like(metadata.draft_token_ids, -1)
        fallback.note(reason, f"first with {logits.size(0)} rows and the drafts {list(scheduled.num_draft_tokens)}")
        return own_forward(upstream, self, metadata, draft_probs, logits, sampling_metadata)
    from vllm.v1.outputs import SamplerOutput

    if not exact:
        draft_probs = None  # greedy or synthetic: the draft's distribution is not used
    masks = step and step.grammar and step.grammar.masks
    seen = views.of_step(scheduled, logits, sampling_metadata, masks, step and step.texts)
    tokens = verified(self, metadata, draft_probs, logits, sampling_metadata, seen)
    if scheduled is not metadata:
        tokens = cut.kept(tokens, scheduled)
    reported = None
    if sampling_metadata.max_num_logprobs is not None:
        rows = Rows(logits, allowed=masks)  # vLLM's raw logprobs are those under the grammar
        reported = logprobs(self, sampling_metadata.max_num_logprobs, scheduled, rows, tokens)
    return SamplerOutput(sampled_token_ids=tokens, logprobs_tensors=reported)


def verified(
    self: Any,
    metadata: Any,
    draft_probs: torch.Tensor | None,
    logits: torch.Tensor,
    sampling_metadata: Any,
    seen: views.Views,
) -> torch.Tensor:
    """Return the tokens [B, K+1] int32 of one verify_chain call on the model's rows and their views."""
    step, method, parameters = self.specdec_step, dict(METHODS[self.specdec_method]), sampling(sampling_metadata)
    B = len(metadata.num_draft_tokens)
    if step is not None and step.seed is not None:
        seed, offset = step.seed, step.offset
    else:
        seed, offset = keys(sampling_metadata.generators, step and step.offset, B, logits.device)
    drafts, kind = (None, "probs") if step is None else (step.drafts, step.draft_kind)
    draft, target_row = None, drafts and drafts.target_row
    if draft_probs is not None:
        drawn_with = parameters if kind == "logits" else {}
        draft = Rows(draft_probs, kind=kind, row=drafts and drafts.draft_row, **drawn_with)
    if "rule" in method:
        method["alpha"] = self.synthetic_conditional_rates[None, : metadata.max_spec_len]
    out = verify_chain(
        Rows(logits, row=target_row, **parameters, **seen.at(target_row)),
        metadata.draft_token_ids,
        draft,
        cu_draft=pad(metadata.cu_num_draft_tokens, (1, 0)),
        max_draft=metadata.max_spec_len,
        seed=seed,
        offset=offset,
        **method,
    )
    metrics.served()
    metrics.saw(out.status)
    return out.tokens.to(torch.int32)


def own_forward(
    upstream: Callable,
    self: Any,
    metadata: Any,
    draft_probs: torch.Tensor | None,
    logits: torch.Tensor,
    sampling_metadata: Any,
) -> Any:
    """Call vLLM's own forward, with the draft's probabilities and the drafts that vLLM cut."""
    step = self.specdec_step
    if step is not None and step.grammar is not None:
        step.grammar.apply()
    if step is not None and draft_probs is not None:
        draft_probs = draft_probs.flatten(0, 1)[step.drafts.draft_row]
        if step.draft_kind == "logits" and not sampling_metadata.all_greedy:
            draft_probs = probabilities(draft_probs, metadata, sampling_metadata)
    if step is None or step.drafts.target_row is None:
        return upstream(self, metadata, draft_probs, logits, sampling_metadata)
    longer = cut.with_cut_ids(sampling_metadata, step.was_cut)
    out = upstream(self, metadata, draft_probs, logits[step.drafts.target_row], longer)
    return cut.kept_output(out, step.scheduled)


def sampling(sampling_metadata: Any) -> dict[str, Any]:
    """Return the requests' sampling parameters as arguments of Rows."""
    if sampling_metadata.all_greedy:
        return {"temperature": 0.0}
    named = {name: getattr(sampling_metadata, name) for name in ("temperature", "top_k", "top_p")}
    return named | {"min_p": processors.min_p(sampling_metadata)}


def probabilities(draft_logits: torch.Tensor, metadata: Any, sampling_metadata: Any) -> torch.Tensor:
    """Return the probabilities [D, V] that our drafter drew from, for vLLM's own code."""
    counts = on(list(metadata.num_draft_tokens), draft_logits.device)
    each = {
        name: x.repeat_interleave(counts, output_size=draft_logits.size(0))
        for name, x in sampling(sampling_metadata).items()
        if x is not None
    }
    each["temperature"] = torch.where(each["temperature"] == 0, 1, each["temperature"])  # greedy: its row is not used
    scale, cutoff, log_norm, top = row_stats(Rows(draft_logits, **each)).unsqueeze(1).unbind(2)
    return ((draft_logits - top) * scale - log_norm).exp().masked_fill_(draft_logits < cutoff, 0)


def rejection_sample(
    upstream: Callable,
    draft_token_ids: torch.Tensor,
    num_draft_tokens: list[int],
    max_spec_len: int,
    cu_num_draft_tokens: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_logits: torch.Tensor,
    bonus_token_ids: torch.Tensor,
    sampling_metadata: Any,
    *more: Any,
    **named: Any,
) -> torch.Tensor:
    """Replacement of the module's ``rejection_sample``, for rows [D, V] that vLLM has scaled and filtered.

    vLLM has drawn the bonus tokens. A window of deferred rejections (fly) and calls with unknown arguments fall back to
    vLLM.
    """
    asked = dict(zip(MORE, more)) | named
    theirs = [name for name, x in asked.items() if name not in MORE or (name in FLY and is_on(x))]
    if theirs:
        fallback.note(f"rejection_sample's {', '.join(theirs)}")
        drafted = (draft_token_ids, num_draft_tokens, max_spec_len, cu_num_draft_tokens, draft_probs)
        return upstream(*drafted, target_logits, bonus_token_ids, sampling_metadata, *more, **named)
    B = len(num_draft_tokens)
    greedy, rates, rule = sampling_metadata.all_greedy, asked.get("synthetic_conditional_rates"), {}
    if rates is None and asked.get("synthetic_mode"):
        raise ValueError("rejection_sample: synthetic_conditional_rates must be given with synthetic_mode, got None")
    if rates is not None:
        rule, draft_probs = {"rule": "synthetic", "alpha": rates[None, :max_spec_len]}, None
    seed, offset = keys(sampling_metadata.generators, None, B, target_logits.device)
    out = verify_chain(
        Rows(target_logits, temperature=0.0 if greedy else (sampling_metadata.temperature != 0).to(torch.float32)),
        draft_token_ids,
        None if greedy or draft_probs is None else Rows(draft_probs, kind="probs"),
        cu_draft=pad(cu_num_draft_tokens, (1, 0)),
        max_draft=max_spec_len,
        bonus_tokens=bonus_token_ids.view(-1),
        seed=seed,
        offset=offset,
        **rule,
    )
    metrics.saw(out.status)
    return out.tokens.to(torch.int32)


def is_on(x: Any) -> bool:
    """Return whether an option of vLLM's call is set."""
    return x is not None and not (isinstance(x, (int, float)) and x == 0)


def expand_batch_to_tokens(
    upstream: Callable,
    x: torch.Tensor,
    cu_num_tokens: torch.Tensor,
    num_tokens: int,
    replace_from: float = 0,
    replace_to: float = 0,
) -> torch.Tensor:
    """Replacement of ``expand_batch_to_tokens``: on the CPU, vLLM 0.32's function works for int64 only."""
    if x.device.type != "cpu":
        return upstream(x, cu_num_tokens, num_tokens, replace_from, replace_to)
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    return torch.where(x == replace_from, replace_to, x).repeat_interleave(counts, output_size=num_tokens).to(x.dtype)
