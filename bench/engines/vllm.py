# SPDX-License-Identifier: Apache-2.0
"""Benchmark of vLLM's whole ``RejectionSampler.forward`` against the plugin's, alternating in one process.

    .venv-vllm/bin/python -m bench.engines.vllm [--rounds 25] [--batch 8] [--drafts 5]

B requests with K drafts each, rows in float32, two threads. Greedy requests get no draft probabilities, so both greedy
rows of a V time the same call. On the CPU, ``expand_batch_to_tokens`` of vLLM 0.32 writes only int64 results
(docs/vllm.md), so vLLM too runs with the plugin's version of it. Preload vLLM's libiomp5.so (``LD_PRELOAD``), as vLLM
advises; without it vLLM is slower.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from specdec_kernels.integrations.vllm import patch, verify

FILTERS = {"temperature only": {}, "top-k 50": {"top_k": 50}, "top-k 40, top-p .9": {"top_k": 40, "top_p": 0.9}}


def sampling(B: int, V: int, greedy: bool, top_k: int | None = None, top_p: float | None = None) -> Any:
    """Return SamplingMetadata of B requests at temperature 0 or .8."""
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.metadata import SamplingMetadata

    nothing = torch.zeros(B)
    return SamplingMetadata(
        temperature=None if greedy else torch.full((B,), 0.8),
        all_greedy=greedy,
        all_random=not greedy,
        top_p=None if top_p is None else torch.full((B,), top_p),
        top_k=None if top_k is None else torch.full((B,), top_k, dtype=torch.int32),
        generators={},
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=nothing,
        presence_penalties=nothing,
        repetition_penalties=nothing + 1,
        output_token_ids=[[] for _ in range(B)],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )


def metadata(B: int, K: int, tokens: torch.Tensor) -> Any:
    """Return SpecDecodeMetadata of B requests with K drafts each."""
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

    rows = torch.arange(B * (K + 1), dtype=torch.int32).view(B, K + 1)
    return SpecDecodeMetadata(
        draft_token_ids=tokens,
        num_draft_tokens=[K] * B,
        cu_num_draft_tokens=torch.arange(1, B + 1, dtype=torch.int32) * K,
        cu_num_sampled_tokens=torch.arange(1, B + 1, dtype=torch.int32) * (K + 1),
        target_logits_indices=rows[:, :K].reshape(-1),
        bonus_logits_indices=rows[:, K].contiguous(),
        logits_indices=rows.reshape(-1),
    )


def upstream() -> tuple[Any, ModuleType]:
    """Return vLLM's sampler and its module, with CPU kernels registered and ``expand_batch_to_tokens`` replaced."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.platforms import current_platform
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.sample.sampler import Sampler

    if current_platform.is_cpu():
        current_platform.register_triton_kernel_overrides()
    with set_current_vllm_config(VllmConfig()):
        made = rejection_sampler.RejectionSampler(Sampler())
    verify.made(made, SimpleNamespace(rejection_sample_method="standard"))
    patch.wrap(rejection_sampler, "expand_batch_to_tokens", verify.expand_batch_to_tokens)
    return made, rejection_sampler


def case(B: int, K: int, V: int, drafts: str, greedy: bool, filters: dict) -> tuple[Any, ...]:
    """Return the arguments of forward. A draft row is a target row plus noise. Its token is drawn from it at
    temperature 0.8; if drafts are n-grams or requests greedy, it is the row's argmax."""
    rng = torch.Generator().manual_seed(0)
    target = 3 * torch.randn(B * (K + 1), V, generator=rng)
    noisy = target.view(B, K + 1, V)[:, :K].reshape(B * K, V) + torch.randn(B * K, V, generator=rng)
    probs = (noisy / 0.8).softmax(-1)
    tokens = noisy.argmax(-1) if greedy or drafts == "n-gram" else probs.multinomial(1, generator=rng).view(-1)
    rows = probs if drafts == "probabilities" and not greedy else None
    return metadata(B, K, tokens.to(torch.int32)), rows, target, sampling(B, V, greedy, **filters)


def medians(calls: list, rounds: int) -> list[float]:
    """Return the median time of each call in ms, with the calls interleaved."""
    taken: list[list[float]] = [[] for _ in calls]
    for i in range(rounds + 3):
        for call, times in zip(calls, taken):
            begin = time.perf_counter()
            call()
            if i >= 3:
                times.append(1e3 * (time.perf_counter() - begin))
    return [statistics.median(times) for times in taken]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--drafts", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(2)
    sampler, module = upstream()
    theirs = functools.partial(module.RejectionSampler.forward, sampler)
    ours = functools.partial(verify.forward, module.RejectionSampler.forward, sampler)
    print("| V | drafts | sampling | vLLM ms | plugin ms | ratio |\n|---|---|---|---|---|---|")
    for V in (49_152, 151_936):
        for drafts in ("n-gram", "probabilities"):
            for name, filters in {"greedy": {}, **FILTERS}.items():
                args = case(asked.batch, asked.drafts, V, drafts, name == "greedy", filters)
                a, b = medians([lambda: theirs(*args), lambda: ours(*args)], asked.rounds)
                print(f"| {V:,} | {drafts} | {name} | {a:.2f} | {b:.2f} | {a / b:.1f}x |", flush=True)


if __name__ == "__main__":
    main()
