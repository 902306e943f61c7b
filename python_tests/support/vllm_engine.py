# SPDX-License-Identifier: Apache-2.0
"""vLLM itself, in an environment of vllm_cpu.sh (the folder in SPECDEC_TEST_VLLM), and distributions of its models."""

import json
import math
import os
import subprocess
from collections import Counter
from pathlib import Path

import torch
from support.paths import TESTS
from transformers import AutoModelForCausalLM

from bench.engines.environment import of_vllm
from specdec_kernels import testing

FOLDER = Path(os.environ.get("SPECDEC_TEST_VLLM", "")).absolute()
PROMPTS = ["The capital of France is", "def fibonacci(n):\n", "Once upon a time there was a", "1, 2, 3, 4, 5, 6,"]
SEEDS = [11, 12, 13, 14]
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 2}


def draft(name, **other):
    model = str(FOLDER / "models" / name)
    return {
        "model": model,
        "method": "draft_model",
        "num_speculative_tokens": 3,
        "draft_sample_method": "probabilistic",
    } | other


def engine(*jobs, on="1", processes="1", target="target", **more):
    """Return the outputs of one vLLM process, in float32, for jobs (speculative config, calls), and its log."""
    environment = of_vllm(on, FOLDER, processes)
    given = json.dumps([{"speculative": x, "calls": calls, "dtype": "float32"} | more for x, calls in jobs])
    command = [FOLDER / "bin" / "python", TESTS / "engines" / "run_vllm.py", FOLDER / "models" / target]
    done = subprocess.run(command, input=given, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr


def call(prompts=PROMPTS, seeds=SEEDS, **sampling):
    return {"prompts": prompts, "seeds": seeds, "sampling": {"max_tokens": 48} | sampling}


def near(a, b):
    """Return whether all texts but at most one are equal. In another batch rows are rounded differently."""
    return sum(x == y for x, y in zip(a, b, strict=True)) >= len(a) - 1


def law_of(prompt, length, temperature, top_k, allowed=None, name="shallow", seen=None, min_p=0.0):
    """Return {ids: probability} of a model's text after a prompt, from transformers' logits in float32.

    allowed [V]: the ids that a grammar allows, the same at every position. seen(z, ids): returns the logits z [V] after
    `ids` with the request's changes, which come before the temperature.
    """
    model = AutoModelForCausalLM.from_pretrained(FOLDER / "models" / name, dtype=torch.float32)
    law = {(): 1.0}
    for _ in range(length):
        z = model(torch.tensor([prompt + list(ids) for ids in law])).logits[:, -1].double()
        if seen is not None:
            z = torch.stack([seen(row, ids) for row, ids in zip(z, law, strict=True)])
        z /= temperature
        if allowed is not None:
            z.masked_fill_(~allowed, -torch.inf)
        if min_p > 0:
            z.masked_fill_(z < z.amax(1, keepdim=True) + math.log(min_p), -torch.inf)
        best = z.topk(top_k, 1)
        p = best.values.softmax(1).tolist()
        of = zip(law.items(), best.indices.tolist(), p, strict=True)
        law = {(*ids, v): mass * x for (ids, mass), next_ids, each in of for v, x in zip(next_ids, each, strict=True)}
        law = {ids: mass for ids, mass in law.items() if mass}
    return law


def projected(law, places):
    """Return the joint distribution of the tokens at these places."""
    found = Counter()
    for ids, mass in law.items():
        found[tuple(ids[i] for i in places)] += mass
    return found


def checked(answer, exact, name):
    """Compare tokens 2 and 3, and their pair, with their distributions, and print the power of each test.

    Return the counts of the pairs, and the report of their test.
    """
    for places in ([1], [2], [1, 2]):
        seen = Counter(tuple(ids[i] for i in places) for ids in answer)
        found = testing.check_counts(seen, projected(exact, places))
        print(f"{name}, tokens {[i + 1 for i in places]}: {len(answer)} draws, {found.cells} cells, "
              f"p-value {found.p_value:.3g}, smallest shift seen {found.detects:.3f}")  # fmt: skip
        assert set(seen) <= set(projected(exact, places))
        assert found.passed, (name, places, found)
    return seen, found
