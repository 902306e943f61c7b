# SPDX-License-Identifier: Apache-2.0
"""What requests ask of rows, in vLLM itself on the CPU: beside vLLM's own processors, and the text's distribution."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from support.paths import PYTHONPATH
from support.vllm_engine import FOLDER

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
    assert len(found) == 6
    for kinds, seen in found.items():
        assert seen["far"] < 4e-6, kinds  # logprobs are below 16: four roundings of 2^-20
        assert seen["otherwise"] == 0 and seen["late"] < 10 and seen["rows"] > 100, kinds
        assert seen["changed"] > 0.1, kinds
        assert seen["banned"] > 50 or kinds in ("bias", "penalties"), kinds
    assert found["min tokens"]["late"] > 0
