# SPDX-License-Identifier: Apache-2.0
"""Run vLLM on jobs from standard input, and print its output as JSON on the last line.

A job: {"speculative": vLLM's speculative_config or null, "dtype": ..., "calls": [{"prompts": [...], "seeds": [...] or
null, "sampling": SamplingParams' arguments, or a list with one for each prompt}, ...]}, and "requests": how many run at
once; "engine": more of LLM's arguments. The output: {"tokens": a list per call, "texts" and "ranks" likewise,
"accepted": n, "drafted": n, "metrics": the plugin's, by name and labels}.
"""

import json
import sys

from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams


def sampling_params(given, seed):
    given = dict(given)
    if "logit_bias" in given:  # JSON's keys are strings
        given["logit_bias"] = {int(token): x for token, x in given["logit_bias"].items()}
    if "structured_outputs" in given:
        given["structured_outputs"] = StructuredOutputsParams(**given["structured_outputs"])
    return SamplingParams(**{"seed": seed, "ignore_eos": True} | given)


def run(model, job):
    llm = LLM(
        model=model,
        dtype=job["dtype"],
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=job.get("requests", 8),
        speculative_config=job["speculative"],
        disable_log_stats=False,
        **job.get("engine", {}),
    )
    tokens, texts, ranks = [], [], []
    for call in job["calls"]:
        n = len(call["prompts"])
        given = call["sampling"] if isinstance(call["sampling"], list) else [call["sampling"]] * n
        sampling = [sampling_params(*each) for each in zip(given, call.get("seeds") or [None] * n, strict=True)]
        outputs = [x.outputs[0] for x in llm.generate(call["prompts"], sampling, use_tqdm=False)]
        tokens.append([list(x.token_ids) for x in outputs])
        texts.append([x.text for x in outputs])
        ranks.append([[min(y.rank for y in at.values()) for at in x.logprobs] for x in outputs if x.logprobs])
    counts = {x.name: x.value for x in llm.get_metrics() if hasattr(x, "value")}
    plugin = [x for x in llm.get_metrics() if x.name.startswith("vllm:specdec")]
    for x in plugin:
        x.labels.pop("model_name")
    llm.llm_engine.do_log_stats()
    llm.llm_engine.engine_core.shutdown()
    return {
        "tokens": tokens,
        "texts": texts,
        "ranks": ranks,
        "accepted": counts.get("vllm:spec_decode_num_accepted_tokens", 0),
        "drafted": counts.get("vllm:spec_decode_num_draft_tokens", 0),
        "metrics": {" ".join([x.name, *x.labels.values()]): x.value for x in plugin},
    }


if __name__ == "__main__":
    print(json.dumps([run(sys.argv[1], job) for job in json.load(sys.stdin)]))
