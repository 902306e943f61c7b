# SPDX-License-Identifier: Apache-2.0
"""Runs vLLM on jobs from standard input and prints what it emitted, as JSON on the last line.

A job: {"speculative": vLLM's speculative_config or null, "dtype": ..., "calls": [{"prompts": [...], "seeds": [...] or
null, "sampling": SamplingParams' arguments}, ...]}. Its answer: {"tokens": a list a call, "accepted": n, "drafted": n}.
"""

import json
import sys

from vllm import LLM, SamplingParams


def run(model, job):
    llm = LLM(
        model=model,
        dtype=job["dtype"],
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=8,
        speculative_config=job["speculative"],
        disable_log_stats=False,
    )
    tokens, logprobs = [], []
    for call in job["calls"]:
        if bias := call["sampling"].get("logit_bias"):  # JSON's names are words
            call["sampling"]["logit_bias"] = {int(token): x for token, x in bias.items()}
        seeds = call.get("seeds") or [None] * len(call["prompts"])
        sampling = [SamplingParams(seed=seed, ignore_eos=True, **call["sampling"]) for seed in seeds]
        outputs = [x.outputs[0] for x in llm.generate(call["prompts"], sampling, use_tqdm=False)]
        tokens.append([list(x.token_ids) for x in outputs])
        logprobs.append([[min(y.rank for y in at.values()) for at in x.logprobs] for x in outputs if x.logprobs])
    counts = {x.name: x.value for x in llm.get_metrics() if hasattr(x, "value")}
    llm.llm_engine.engine_core.shutdown()
    return {
        "tokens": tokens,
        "ranks": logprobs,
        "accepted": counts.get("vllm:spec_decode_num_accepted_tokens", 0),
        "drafted": counts.get("vllm:spec_decode_num_draft_tokens", 0),
    }


if __name__ == "__main__":
    print(json.dumps([run(sys.argv[1], job) for job in json.load(sys.stdin)]))
