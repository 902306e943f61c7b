# SPDX-License-Identifier: Apache-2.0
"""Benchmark of a step in a vLLM engine: ``RejectionSampler.forward``, and the whole step.

    .venv-vllm/bin/python -m bench.engines.vllm_step .venv-vllm/models [--steps 200] [--runs 5] [--drafts n-gram]

The folder holds the models `target` and `draft` (python_tests/engines/smollm2.py). Processes with and without the
plugin alternate, each with its own engine. Each process reports its median time; the table shows the median over
processes. A ratio compares two consecutive processes; the table shows the median ratio, the lowest and the highest.
Both sides use a corrected expansion of sampling parameters (see bench/engines/vllm.py).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.engines.environment import of_vllm

PROMPTS = ["The capital of France is", "def fibonacci(n):\n", "Once upon a time there was a", "1, 2, 3, 4, 5, 6,"]
DRAFTERS: dict[str, Callable[[Path], dict]] = {
    "n-gram": lambda folder: {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 2},
    "draft model": lambda folder: {
        "method": "draft_model",
        "model": str(folder / "draft"),
        "draft_sample_method": "probabilistic",
    },
}
WARM = 5  # warm-up steps that are not counted


def timed(holder: Any, name: str) -> list[float]:
    """Wrap holder.name so that it records the milliseconds of each call; return the list of times."""
    taken: list[float] = []
    function = getattr(holder, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            taken.append(1e3 * (time.perf_counter() - begin))

    setattr(holder, name, call)
    return taken


def measure(folder: Path, drafter: str, steps: int) -> dict[str, list[float]]:
    """Measure in this process -> {temperature: [median of forward, median of a step]}."""
    from vllm import LLM, SamplingParams
    from vllm.v1.sample import rejection_sampler

    from specdec_kernels.integrations.vllm import patch, verify

    llm = LLM(
        model=str(folder / "target"),
        dtype="float32",
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=len(PROMPTS),
        speculative_config=DRAFTERS[drafter](folder) | {"num_speculative_tokens": 3},
    )
    if not hasattr(rejection_sampler.RejectionSampler.forward, "specdec_kernels"):
        patch.wrap(rejection_sampler, "expand_batch_to_tokens", verify.expand_batch_to_tokens)
    forward = timed(rejection_sampler.RejectionSampler, "forward")
    step = timed(llm.llm_engine, "step")
    found = {}
    for temperature in (0.0, 1.0):
        forward.clear(), step.clear()
        while len(forward) < steps + WARM:
            sampling = SamplingParams(temperature=temperature, seed=1, max_tokens=256, ignore_eos=True)
            llm.generate(PROMPTS, sampling, use_tqdm=False)
        found[f"{temperature:g}"] = [statistics.median(taken[WARM:]) for taken in (forward, step)]
    return found


def child(folder: Path, drafter: str, steps: int, on: bool) -> dict[str, list[float]]:
    command = [sys.executable, "-m", "bench.engines.vllm_step", folder, "--only", drafter, "--steps", str(steps)]
    done = subprocess.run(command, env=of_vllm(on), capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-4000:])
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--drafts", choices=DRAFTERS, nargs="+", default=list(DRAFTERS))
    parser.add_argument("--only", choices=DRAFTERS, help="measure in this process, with its environment unchanged")
    asked = parser.parse_args()
    if asked.only:
        return print(json.dumps(measure(asked.folder, asked.only, asked.steps)))
    print("| drafts | T | | vLLM ms | plugin ms | ratio |\n|---|---|---|---|---|---|")
    for drafter in asked.drafts:
        runs = [[child(asked.folder, drafter, asked.steps, on) for on in (False, True)] for _ in range(asked.runs)]
        for temperature in runs[0][0]:
            for i, part in enumerate(("forward", "step")):
                theirs, ours = ([run[on][temperature][i] for run in runs] for on in (False, True))
                ratios = sorted(b / a for a, b in zip(theirs, ours))
                ms = " | ".join(f"{statistics.median(side):.2f}" for side in (theirs, ours))
                ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
                print(f"| {drafter} | {temperature} | {part} | {ms} | {ratio} |", flush=True)


if __name__ == "__main__":
    main()
