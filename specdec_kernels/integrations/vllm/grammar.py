# SPDX-License-Identifier: Apache-2.0
"""Grammars of vLLM's V1 runner as masks that the ops read, in place of a pass that writes to the rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from specdec_kernels.allowed import Allowed
from specdec_kernels.integrations.vllm.upload import on


@dataclass(frozen=True)
class Grammar:
    """The grammars of a step, as masks and as vLLM's own function."""

    masks: Allowed  # its `row` has the index of the mask of each row of logits [R]; -1: no grammar
    apply: Callable[[], None]  # vLLM's own function, which writes -inf to the rows


def apply_grammar_bitmask(
    upstream: Callable, scheduler_output: Any, grammar_output: Any, input_batch: Any, logits: torch.Tensor
) -> None:
    """Replacement of the runner's ``apply_grammar_bitmask``: keep the masks for the step that follows, and write
    nothing."""
    drafts = scheduler_output.scheduled_spec_decode_tokens
    rows = np.array([1 + len(drafts.get(request, ())) for request in input_batch.req_ids])
    first = dict(zip(input_batch.req_ids, rows.cumsum() - rows, strict=True))
    row = np.full(logits.size(0), -1, dtype=np.int64)
    asking = grammar_output.structured_output_request_ids
    own = np.array([1 + len(drafts.get(request, ())) for request in asking])
    mask = own.cumsum() - own
    if own.sum() != len(grammar_output.grammar_bitmask):  # 0.33: blocks of one size, with gaps; 0.32: none
        mask = np.arange(len(own)) * (len(grammar_output.grammar_bitmask) // len(own))
    for request, begin, n in zip(asking, mask, own, strict=True):
        if request in first:
            row[first[request] : first[request] + n] = np.arange(begin, begin + n)
    copied = (on(x, logits.device) for x in (grammar_output.grammar_bitmask.copy(), row))
    write = functools.partial(upstream, scheduler_output, grammar_output, input_batch, logits)
    input_batch.specdec_grammar = Grammar(Allowed(*copied), write)


def taken(input_batch: Any) -> Grammar | None:
    """Return the grammars of this step and remove them from the batch."""
    found = getattr(input_batch, "specdec_grammar", None)
    input_batch.specdec_grammar = None
    return found
