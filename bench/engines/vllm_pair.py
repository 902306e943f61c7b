# SPDX-License-Identifier: Apache-2.0
"""Benchmark of text in a vLLM engine: no speculation, vLLM's own verification, and the plugin's, on code prompts.

    .venv-vllm/bin/python -m bench.engines.vllm_pair .venv-vllm/models [--drafter trained] [--temperature 0 1]

The folder holds the models that python_tests/engines/smollm2.py writes. Each side is a process with its own engine, and
the sides take turns: a round is the same prompts on each side, with other seeds than the round before. A ratio compares
two sides in one round; the table shows its median over rounds, the lowest and the highest. CPU seconds are those of all
threads of the process. On a machine that others use they vary less than elapsed time does. vLLM's own verification runs
with a corrected expansion of sampling parameters (bench/engines/vllm.py), without which its text is garbage on the CPU.
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

SIDES = ("no speculation", "vLLM", "plugin")
PROMPTS = [
    'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n',
    "class Stack:\n    def __init__(self):\n",
    "import json\n\n\ndef read_config(path):\n",
    "def is_prime(n: int) -> bool:\n",
    'def count_words(text):\n    """Return a dictionary from each word of the text to its count."""\n',
    "import math\n\n\nclass Circle:\n    def __init__(self, radius):\n",
    'from typing import List\n\n\ndef below_zero(operations: List[int]) -> bool:\n    """Return whether the balance '
    'falls below zero at some point."""\n',
    'def merge(left: list, right: list) -> list:\n    """Merge two sorted lists."""\n',
]
DRAFTERS: dict[str, Callable[[Path], dict]] = {
    "trained": lambda folder: {"method": "eagle", "model": str(folder / "trained")},
    "draft": lambda folder: {"method": "draft_model", "model": str(folder / "draft")},
    "ngram": lambda folder: {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 2},
}


def speculative(folder: Path, drafter: str, drafts: int) -> dict:
    """Return vLLM's speculative_config."""
    config = DRAFTERS[drafter](folder) | {"num_speculative_tokens": drafts}
    return config if drafter == "ngram" else config | {"draft_sample_method": "probabilistic"}


def serve(asked: argparse.Namespace) -> None:
    """Run one side in this process: a line {"temperature": T, "seed": s} from standard input asks for a round.

    Its answer is a line with the round's texts, number of tokens, seconds and CPU seconds, and with the numbers of
    drafted and of accepted tokens since the process began.
    """
    from vllm import LLM, ModelRegistry, SamplingParams
    from vllm.v1.sample import rejection_sampler

    from specdec_kernels.integrations.vllm import layer_draft, patch, verify

    if asked.side == "vLLM":  # with the plugin on, it does both
        layer_draft.register(ModelRegistry)
        patch.wrap(rejection_sampler, "expand_batch_to_tokens", verify.expand_batch_to_tokens)
    plain = asked.side == "no speculation"
    llm = LLM(
        model=str(asked.folder / "target"),
        dtype=asked.dtype,
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=asked.batch,
        speculative_config=None if plain else speculative(asked.folder, asked.drafter, asked.drafts),
        disable_log_stats=False,
    )
    prompts = PROMPTS[: asked.prompts]
    for line in sys.stdin:
        given = json.loads(line)
        sampling = [
            SamplingParams(
                temperature=given["temperature"], seed=given["seed"] + i, max_tokens=asked.tokens, ignore_eos=True
            )
            for i in range(len(prompts))
        ]
        begin = time.perf_counter(), time.process_time()
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        took = time.perf_counter() - begin[0], time.process_time() - begin[1]
        counts = {x.name: x.value for x in llm.get_metrics() if hasattr(x, "value")}
        found = {
            "tokens": sum(len(x.outputs[0].token_ids) for x in outputs),
            "seconds": took[0],
            "cpu": took[1],
            "texts": [list(x.outputs[0].token_ids) for x in outputs],
            "drafted": counts.get("vllm:spec_decode_num_draft_tokens", 0),
            "accepted": counts.get("vllm:spec_decode_num_accepted_tokens", 0),
        }
        print("\n" + json.dumps(found), flush=True)


class Side:
    """A side's process."""

    def __init__(self, name: str, asked: argparse.Namespace) -> None:
        environment = of_vllm(name == "plugin") | {"VLLM_LOGGING_LEVEL": "ERROR"}
        command = [sys.executable, "-m", "bench.engines.vllm_pair", str(asked.folder), "--side", name]
        for option in ("drafter", "prompts", "tokens", "batch", "drafts", "dtype"):
            command += [f"--{option}", str(getattr(asked, option))]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process: Any = subprocess.Popen(command, env=environment, **pipes)  # type: ignore[call-overload]
        self.counted = {"drafted": 0, "accepted": 0}

    def round(self, temperature: float, seed: int) -> dict:
        """Return the answer to one round, with the counts of drafted and accepted tokens of this round alone."""
        self.process.stdin.write(json.dumps({"temperature": temperature, "seed": seed}) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):
                found = json.loads(line)
                before, self.counted = self.counted, {name: found[name] for name in self.counted}
                return found | {name: self.counted[name] - before[name] for name in before}
        sys.exit(f"{' '.join(self.process.args)} ended with {self.process.wait()}")

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def row(temperature: float, name: str, rounds: list[dict], plain: list[dict]) -> str:
    """Return a side's row of the table, from its rounds and those without speculation."""
    per = {unit: [x["tokens"] / x[unit] for x in rounds] for unit in ("seconds", "cpu")}
    ratios = {unit: [a / (b["tokens"] / b[unit]) for a, b in zip(per[unit], plain)] for unit in per}
    drafted = sum(x["drafted"] for x in rounds)
    kept = f"{sum(x['accepted'] for x in rounds) / drafted:.3f}" if drafted else ""
    cells = [f"{temperature:g}", name, kept]
    for unit in per:
        cells += [f"{statistics.median(per[unit]):.1f}", spread(ratios[unit])]
    return f"| {' | '.join(cells)} |"


def compare(asked: argparse.Namespace, sides: dict[str, Any]) -> None:
    """Print the table, and how many of the plugin's texts at temperature 0 equal those without speculation.

    A first round of each side is not counted.
    """
    equal: list[bool] = []
    for side in sides.values():
        side.round(asked.temperature[0], 0)
    ratio = "ratio to no speculation"
    print(f"| T | verified by | kept | tokens/s | {ratio} | tokens/CPU s | {ratio} |\n|---|---|---|---|---|---|---|")
    for temperature in asked.temperature:
        rounds: dict[str, list[dict]] = {name: [] for name in sides}
        for i in range(asked.rounds):
            for name, side in sides.items():
                rounds[name].append(side.round(temperature, 1 + i * asked.prompts))
        plain = rounds[SIDES[0]]
        for name, found in rounds.items():
            print(row(temperature, name, found, plain), flush=True)
        if temperature == 0:
            equal += [x == y for a, b in zip(rounds["plugin"], plain) for x, y in zip(a["texts"], b["texts"])]
    if equal:
        print(f"\nthe plugin's texts at T=0 that are those without speculation: {sum(equal)} of {len(equal)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--drafter", choices=DRAFTERS, default="trained")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), help=f"at most {len(PROMPTS)}")
    parser.add_argument("--tokens", type=int, default=64, help="of each text")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=1, help="texts at a time")
    parser.add_argument("--drafts", type=int, default=3, help="drafted tokens of a step")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--side", choices=SIDES, help="be the process of one side")
    asked = parser.parse_args()
    if asked.side:
        return serve(asked)
    sides = {name: Side(name, asked) for name in SIDES}
    compare(asked, sides)
    for side in sides.values():
        side.close()


if __name__ == "__main__":
    main()
