# SPDX-License-Identifier: Apache-2.0
"""Requests with penalties, biases, bans or a thinking budget, in vLLM itself on the CPU: rows compared with those of
vLLM's own processors, and the text's distribution."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from support.paths import PYTHONPATH
from support.vllm_engine import FOLDER, call, checked, draft, engine, law_of, near, projected

from specdec_kernels import testing

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif("SPECDEC_TEST_VLLM" not in os.environ, reason="SPECDEC_TEST_VLLM names no environment"),
]


def test_beside_vllms_own_processors():
    """The same ids are forbidden, and logprobs agree within float32's rounding (vLLM multiplies by 1 / repetition).

    One difference is by intent: vLLM applies min_tokens to bonus rows even where the drafts before them reach it.
    """
    command = [FOLDER / "bin" / "python", Path(__file__).with_name("run_vllm_processors.py")]
    environment = os.environ | {"PYTHONPATH": PYTHONPATH}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 7
    for kinds, seen in found.items():
        assert seen["far"] < 4e-6, kinds  # logprobs are below 16: four roundings of 2^-20
        assert seen["otherwise"] == 0 and seen["late"] < 10 and seen["rows"] > 100, kinds
        assert seen["changed"] > 0.1, kinds
        assert seen["banned"] > 50 or kinds in ("bias", "penalties"), kinds
    assert found["min tokens"]["late"] > 0 and found["thinking"]["forced"] > 20


PROMPT = [504]
ASKED = {"temperature": 1.5, "top_k": 6, "min_p": 0.05, "presence_penalty": 1.5, "repetition_penalty": 1.1}
BIAS = {28: 1.0, 260: -0.5}


def penalised(z, ids, presence=1.5, repetition=1.1):
    """Return the logits of a request with ASKED and BIAS after the text's ids, by definition."""
    z = z.clone()
    for v, x in BIAS.items():
        z[v] += x
    for v in {*PROMPT, *ids}:
        z[v] = z[v] / repetition if z[v] > 0 else z[v] * repetition
    for v in set(ids):
        z[v] -= presence
    return z


def test_the_law_of_tokens_with_penalties_min_p_and_a_bias():
    """5,000 completions of three tokens with two penalties, min-p and a bias, beside 2,500 with none of these in the
    same batches.

    Tokens 2 and 3 come from verification. The distribution without the presence penalty is rejected.
    """
    N, plain = 5000, {"temperature": 1.5, "top_k": 6}
    each = {"max_tokens": 3, "detokenize": False}
    asked = ASKED | each | {"logit_bias": {str(v): x for v, x in BIAS.items()}}
    sampling = [plain | each if i % 3 == 2 else asked for i in range(N + N // 2)]
    calls = [{"prompts": [{"prompt_token_ids": PROMPT}] * len(sampling), "sampling": sampling}]
    (answer,), log = engine((draft("shallower", num_speculative_tokens=2), calls), target="shallow", requests=64)
    assert 0.1 < answer["accepted"] / answer["drafted"] < 0.9, "not a test of both outcomes"
    assert "fall back to vLLM" not in log and not any("vllm:specdec_steps 0 vllm" in x for x in answer["metrics"])
    tokens = answer["tokens"][0]
    rows = {"temperature": 1.5, "top_k": 6}
    checked(tokens[2::3], law_of(PROMPT, 3, **rows), "plain")
    asking = [ids for i, ids in enumerate(tokens) if i % 3 < 2]
    seen, _ = checked(asking, law_of(PROMPT, 3, **rows, min_p=0.05, seen=penalised), "all four")
    without = law_of(PROMPT, 3, **rows, min_p=0.05, seen=lambda z, ids: penalised(z, ids, presence=0.0))
    assert not testing.check_counts(seen, projected(without, [1, 2])).passed


def test_greedy_text_with_penalties_is_that_of_no_drafts():
    """Greedy text in float32 equals that without drafts, also with a bias, a bad word and a minimum length. The target
    drafts for itself without these parameters, so some drafts are accepted and some are not."""
    penalties = {"presence_penalty": 1.5, "repetition_penalty": 1.1, "frequency_penalty": 0.3}
    bans = {"bad_words": [" the"], "min_tokens": 20, "logit_bias": {"28": 2.0}, "ignore_eos": False}
    asked = [{"temperature": 0.0, "max_tokens": 24} | x for x in (penalties, penalties | bans)]
    calls = [call(seeds=None) | {"sampling": x} for x in asked]
    (plain, drafted), _ = engine((None, calls), (draft("target"), calls))
    assert 0 < drafted["accepted"] < 0.9 * drafted["drafted"]
    for got, want in zip(drafted["tokens"], plain["tokens"], strict=True):
        print(f"{sum(x == y for x, y in zip(got, want, strict=True))} of {len(want)} texts are equal")
        assert near(got, want)
    assert plain["tokens"][0] != plain["tokens"][1]
