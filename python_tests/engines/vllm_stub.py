# SPDX-License-Identifier: Apache-2.0
"""What the plugin touches of vLLM, made by hand after vLLM 0.32: enough to draft and verify a batch without it."""

import sys
from types import ModuleType, SimpleNamespace

import torch


def metadata(num_draft, drafts):
    """SpecDecodeMetadata: ids [D] of requests with so many drafts each, and where their rows [D+B] lie."""
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
    """SamplingMetadata of B requests that sample, with vLLM's processors, idle but for min-p where it is given."""
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
            "no_penalties": True,
            "bad_words_token_ids": {},
            "allowed_token_ids_mask": None,
            "logitsprocs": idle,
            "thinking_budget_state_holder": None,
            **other,
        }
    )


def rejection_sampler(method="standard"):
    """RejectionSampler, as `verify.made` leaves it."""
    return SimpleNamespace(
        is_processed_logprobs_mode=False,
        is_logits_logprobs_mode=False,
        specdec_method=method,
        specdec_step=None,
        synthetic_conditional_rates=torch.tensor([1.0, 0.75, 0.5]) if method == "synthetic" else None,
    )


def proposer(method="standard"):
    """SpecDecodeBaseProposer of a draft model that samples."""
    config = SimpleNamespace(rejection_sample_method=method, draft_sample_method="probabilistic")
    return SimpleNamespace(
        _enable_probabilistic_draft_probs=method == "standard", speculative_config=config, uses_mrope=False
    )


def runner(sampler, drafter, positions, sampling_metadata):
    """GPUModelRunner in a step: the positions of the scheduled tokens, here those of the rows."""
    start = torch.arange(positions.size(0) + 1, dtype=torch.int32)
    return SimpleNamespace(
        rejection_sampler=sampler,
        drafter=drafter,
        positions=positions,
        input_batch=SimpleNamespace(sampling_metadata=sampling_metadata),
        query_start_loc=SimpleNamespace(gpu=start),
    )


def modules(monkeypatch):
    """The classes that the plugin makes: vLLM's SamplerOutput and SpecDecodeMetadata."""
    for name in ("vllm", "vllm.v1", "vllm.v1.outputs", "vllm.v1.spec_decode", "vllm.v1.spec_decode.metadata"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["vllm.v1.outputs"].SamplerOutput = SimpleNamespace
    sys.modules["vllm.v1.outputs"].LogprobsTensors = lambda *tensors: tensors
    sys.modules["vllm.v1.spec_decode.metadata"].SpecDecodeMetadata = lambda num_draft_tokens, **other: SimpleNamespace(
        num_draft_tokens=num_draft_tokens, max_spec_len=max(num_draft_tokens), **other
    )
