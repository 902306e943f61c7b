# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the parts of vLLM 0.32 that the plugin uses, to draft and verify a batch without vLLM."""

import sys
from collections import namedtuple
from types import ModuleType, SimpleNamespace

import numpy as np
import torch

from specdec_kernels.integrations.vllm import cut, draft, verify

# vLLM's LogprobsTensors
Logprobs = namedtuple("Logprobs", "ids logprobs ranks cu_num cu_num_tensor", defaults=(None, None))


def metadata(num_draft, drafts):
    """Return SpecDecodeMetadata of requests with num_draft drafts each: their ids [D] and the indices of rows [D+B]."""
    sampled = torch.tensor(num_draft, dtype=torch.int32) + 1
    ends = sampled.cumsum(0, dtype=torch.int32)
    bonus = torch.zeros(int(ends[-1]), dtype=torch.bool).index_fill(0, (ends - 1).long(), True)
    return SimpleNamespace(
        draft_token_ids=drafts.to(torch.int32),
        num_draft_tokens=num_draft,
        max_spec_len=max(num_draft),
        cu_num_draft_tokens=(sampled - 1).cumsum(0, dtype=torch.int32),
        cu_num_sampled_tokens=ends,
        target_logits_indices=(~bonus).nonzero().view(-1),
        bonus_logits_indices=bonus.nonzero().view(-1),
        logits_indices=torch.arange(int(ends[-1])),
    )


def sampling(B, temperature=1.0, top_k=None, top_p=None, seeds=None, min_p=0.0, **other):
    """Return SamplingMetadata of B requests that sample. vLLM's processors are idle, except min-p if it is given."""
    generators = {b: torch.Generator().manual_seed(seed) for b, seed in (seeds or {}).items()}
    idle = SimpleNamespace(
        argmax_invariant=[SimpleNamespace(min_p_count=B if min_p else 0, min_p=torch.full((B, 1), min_p))],
        non_argmax_invariant=[SimpleNamespace(min_toks={}), SimpleNamespace(biases={})],
    )
    return SimpleNamespace(
        **{
            "temperature": torch.full((B,), temperature),
            "all_greedy": False,
            "all_random": True,
            "top_k": None if top_k is None else torch.full((B,), top_k, dtype=torch.int32),
            "top_p": None if top_p is None else torch.full((B,), top_p),
            "generators": generators,
            "max_num_logprobs": None,
            "logprob_token_ids": None,
            "spec_token_ids": None,
            "output_token_ids": [],
            "no_penalties": True,
            "bad_words_token_ids": {},
            "allowed_token_ids_mask": None,
            "logitsprocs": idle,
            "thinking_budget_state_holder": None,
            **other,
        }
    )


def rejection_sampler(method="standard"):
    """Return a RejectionSampler as `verify.made` leaves it."""
    return SimpleNamespace(
        is_processed_logprobs_mode=False,
        is_logits_logprobs_mode=False,
        specdec_method=method,
        specdec_step=None,
        synthetic_conditional_rates=torch.tensor([1.0, 0.75, 0.5]) if method == "synthetic" else None,
    )


def proposer(method="standard"):
    """Return the SpecDecodeBaseProposer of a draft model that samples."""
    config = SimpleNamespace(rejection_sample_method=method, draft_sample_method="probabilistic")
    return SimpleNamespace(
        _enable_probabilistic_draft_probs=method == "standard", speculative_config=config, uses_mrope=False
    )


def input_batch(sampling_metadata, requests):
    """InputBatch, with the requests' prompts if they have penalties."""
    prompts = getattr(sampling_metadata, "prompt_token_ids", None)
    made = SimpleNamespace(sampling_metadata=sampling_metadata, req_ids=requests)
    if prompts is not None:  # their pads, V, are no ids
        made.token_ids_cpu, made.num_prompt_tokens = prompts.numpy(), [prompts.size(1)] * len(requests)
    return made


def runner(sampler, drafter, positions, sampling_metadata, tokens=None, rows=None):
    """Return a GPUModelRunner in a step.

    positions: those of the scheduled tokens, here of the rows. tokens [B, K], rows [B, K, V]: the drafter's output in
    the step before.
    """
    requests = [f"request {b}" for b in range(sampling_metadata.temperature.size(0))]
    return SimpleNamespace(
        rejection_sampler=sampler,
        drafter=drafter,
        positions=positions,
        input_batch=input_batch(sampling_metadata, requests),
        query_start_loc=SimpleNamespace(gpu=torch.arange(positions.size(0) + 1, dtype=torch.int32)),
        discard_request_mask=SimpleNamespace(np=np.zeros(len(requests) + 1, dtype=bool)),
        specdec_sampled=frozenset(requests),
        _draft_token_ids=tokens,
        _draft_probs=rows,
        _draft_prob_req_ids=None if rows is None else requests,
    )


def step(metadata, offset, kind="logits"):
    """Return the plugin's Step for a step in which no draft was cut. Draft i has row i."""
    drafts = cut.Drafts(metadata, None, torch.arange(metadata.draft_token_ids.size(0)))
    return verify.Step(offset, kind, metadata, drafts, np.zeros(len(metadata.num_draft_tokens), dtype=bool))


def sample(runner, logits, spec_decode_metadata):
    """Run GPUModelRunner._sample with the plugin's functions; return None if the step is left to vLLM's sampler."""

    def upstream(self, logits, metadata):
        if metadata is None:
            return None
        probs = draft.draft_rows(None, self, metadata)
        return verify.forward(own_forward, self.rejection_sampler, metadata, probs, logits, sampling_of(self))

    return draft.runner_sample(upstream, runner, logits, spec_decode_metadata)


def sampling_of(runner):
    return runner.input_batch.sampling_metadata


def own_forward(self, metadata, draft_probs, logits, sampling_metadata):
    """Run RejectionSampler.forward as in vLLM: scale the rows, draw bonus tokens, then call rejection_sample.

    There are no filters or processors. The index of a token's row stands for its logprobs.
    """
    B, ends = len(metadata.num_draft_tokens), metadata.cu_num_sampled_tokens
    counts = torch.tensor(metadata.num_draft_tokens)
    scaled = logits.double() / sampling_metadata.temperature.repeat_interleave(counts + 1)[:, None]
    bonus = torch.multinomial(scaled[metadata.bonus_logits_indices.long()].softmax(1), 1)
    tokens = verify.rejection_sample(
        None,
        metadata.draft_token_ids,
        metadata.num_draft_tokens,
        metadata.max_spec_len,
        metadata.cu_num_draft_tokens,
        draft_probs,
        scaled[metadata.target_logits_indices.long()].float(),
        bonus,
        sampling_metadata,
    )
    row = (ends - counts - 1)[:, None] + torch.arange(metadata.max_spec_len + 1)
    row = row.clamp(max=len(logits) - 1).reshape(B * row.size(1), 1)
    return SimpleNamespace(
        sampled_token_ids=tokens, logprobs_tensors=Logprobs(row, logits[row[:, 0]], row[:, 0], None, None)
    )


def modules(monkeypatch):
    """Put stubs of vLLM's modules into sys.modules, with the classes of the objects that the plugin makes."""
    for name in ("vllm", "vllm.v1", "vllm.v1.outputs", "vllm.v1.spec_decode", "vllm.v1.spec_decode.metadata"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["vllm.v1.outputs"].SamplerOutput = SimpleNamespace
    sys.modules["vllm.v1.outputs"].LogprobsTensors = Logprobs
    sys.modules["vllm.v1.spec_decode.metadata"].SpecDecodeMetadata = lambda num_draft_tokens, **other: SimpleNamespace(
        num_draft_tokens=num_draft_tokens, max_spec_len=max(num_draft_tokens), **other
    )
