# SPDX-License-Identifier: Apache-2.0
"""Compare the plugin's views with vLLM's own processors, on batches of requests with one kind of parameter (penalties,
a bias, ...) or all. Print JSON: for each batch, among other figures, the largest difference of a logprob, how many
entries vLLM forbids, and how many only one of the two forbids.

A grammar is not part of it: vLLM's runner applies it.
"""

import json
from types import SimpleNamespace

import torch
from support import vllm_views
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessors
from vllm.v1.sample.logits_processor.builtin import LogitBiasLogitsProcessor, MinTokensLogitsProcessor
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler
from vllm.v1.sample.thinking_budget_state import ThinkingBudgetStateHolder

from specdec_kernels import Rows, top_logprobs
from specdec_kernels.integrations.vllm import processors, views


def processor(kind, batch):
    """Return vLLM's processor, updated with the batch's requests."""
    made = kind(SimpleNamespace(), torch.device("cpu"), False)
    added = []
    for b in range(batch.B):
        until, ends = batch.ends.get(b, (0, set()))
        params = SamplingParams(
            logit_bias=batch.bias.get(b), min_tokens=until, max_tokens=50, stop_token_ids=list(ends)
        )
        added.append((b, params, batch.prompt[b], batch.output[b]))
    made.update_state(BatchUpdate(batch.B, [], added, []))
    return made


def budgets(batch):
    """Return vLLM's holder of thinking budgets. Token 1 opens, in each prompt; tokens 2 and 3 close."""
    reasoning = SimpleNamespace(reasoning_start_token_ids=[1], reasoning_end_token_ids=[2, 3])
    made = ThinkingBudgetStateHolder(reasoning, batch.B, vllm_views.K, torch.device("cpu"), False)
    added = []
    for b in range(batch.B):
        params = SamplingParams(thinking_token_budget=b % 9, max_tokens=50) if b % 4 else SamplingParams()
        added.append((b, params, [1, *batch.prompt[b]], batch.output[b]))
    made.sync_batch(BatchUpdate(batch.B, [], added, []))
    return made


def compared(kinds):
    batch = vllm_views.Batch([kind for kind in kinds if kind != "thinking"], dtype=torch.float32)
    given = {name: x for name, x in vars(batch.sampling).items() if name in SamplingMetadata.__dataclass_fields__}
    ones = torch.ones(batch.B)
    given = {"prompt_token_ids": None, "presence_penalties": ones, "frequency_penalties": ones,
             "repetition_penalties": ones} | given  # fmt: skip
    made = (processor(kind, batch) for kind in (MinTokensLogitsProcessor, LogitBiasLogitsProcessor))
    sampling = SamplingMetadata(**given | {"logitsprocs": LogitsProcessors(made)})
    counts = torch.from_numpy(batch.counts)
    is_bonus = torch.zeros(len(batch.rows), dtype=torch.bool).index_fill(0, (counts + 1).cumsum(0) - 1, True)
    places = {"bonus_logits_indices": is_bonus.nonzero()[:, 0], "target_logits_indices": (~is_bonus).nonzero()[:, 0]}
    scheduled = SimpleNamespace(num_draft_tokens=batch.counts.tolist(), **places)
    if "thinking" in kinds:
        sampling.thinking_budget_state_holder = budgets(batch)
    sampler = RejectionSampler(Sampler())
    upstream = RejectionSampler.apply_logits_processors
    theirs = batch.rows.clone()
    theirs[is_bonus] = sampler.sampler.apply_logits_processors(theirs[is_bonus], sampling, True)
    theirs[~is_bonus] = processors.apply_logits_processors(upstream, sampler, theirs[~is_bonus], sampling, scheduled)
    forced = (theirs == 1e9).any(1)
    theirs[(theirs != 1e9) & forced[:, None]] = -torch.inf  # a thinking budget's token; vLLM leaves others as they are

    if "thinking" in kinds:
        sampling.thinking_budget_state_holder = budgets(batch)
    at = views.of_step(scheduled, batch.rows, sampling, None).at(None)
    request = torch.arange(batch.B).repeat_interleave(counts + 1)
    if at["penalties"] is not None:
        window = [batch.drafts[b][:i] for b in range(batch.B) for i in range(batch.counts[b] + 1)]
        drafted = torch.tensor([x + [-1] * (vllm_views.K - len(x)) for x in window])
        each = {name: getattr(at["penalties"], name)[request] for name in ("repetition", "frequency", "presence")}
        at["penalties"] = at["penalties"]._replace(row=request, drafted=drafted, **each)
    every = torch.arange(batch.V).expand(len(batch.rows), -1)
    ours = top_logprobs(Rows(batch.rows, **at), 0, every).token_logprobs
    theirs = theirs.log_softmax(1)
    banned = theirs.isneginf()
    # vLLM forbids end tokens in the bonus row of every request that is below its minimum before the step.
    late = torch.zeros_like(banned)
    first = (counts + 1).cumsum(0) - counts - 1
    for b, (until, ends) in batch.ends.items():
        if len(batch.output[b]) + batch.counts[b] >= until:
            late[first[b] + batch.counts[b], list(ends)] = True
    late[forced] = False
    row = ~(late & banned & ~ours.isneginf()).any(1)
    return {
        "far": float((ours - theirs)[row][~banned[row]].abs().max()),
        "changed": float((batch.rows.log_softmax(1) - theirs)[~banned].abs().max()),
        "banned": int(banned[row].sum()),
        "otherwise": int((banned != ours.isneginf())[row].sum()),
        "late": int((~row).sum()),
        "forced": int(forced.sum()),
        "rows": len(row),
    }


if __name__ == "__main__":
    kinds = (*vllm_views.KINDS[:5], "thinking")
    print(json.dumps({" + ".join(x): compared(x) for x in (*((kind,) for kind in kinds), kinds)}))
