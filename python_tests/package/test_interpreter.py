# SPDX-License-Identifier: Apache-2.0
"""Triton's interpreter, sped up by support/interpreter.py, gives the same bits as unchanged."""

import json
import os
import subprocess
import sys

import pytest
from gates import hostile
from support import backends, paths, tiers

# Below the tier `all`, a call of every third op, in turn with SPECDEC_SEED
OPS = [*hostile.OPS][tiers.TURN % 3 :: 3] if tiers.TIER != "all" else [*hostile.OPS]
CALLS = len(OPS) * (20 if tiers.TIER == "all" else 1)


def recorded(path, *how):
    """Return what tools/record.py writes for CALLS calls: for each, a digest of all returned tensors, or its error."""
    how = (*how, *(f"--op={op}" for op in OPS), f"--calls={CALLS}")
    command = [sys.executable, "-m", "tools.record", str(path), *how]
    told = {"SPECDEC_BACKEND": "triton", "TRITON_INTERPRET": "1", "PYTHONPATH": paths.PYTHONPATH}
    subprocess.run(command, cwd=paths.ROOT, env=os.environ | told, check=True)
    return json.loads(path.read_text())


@pytest.mark.slow
@pytest.mark.skipif("triton-interpret" not in backends.NAMES, reason="not among the backends that were asked for")
def test_same_bits(tmp_path):
    if why := backends.why_not("triton-interpret"):
        pytest.skip(why)
    plain, hastened = recorded(tmp_path / "plain.json", "--plain"), recorded(tmp_path / "hastened.json")
    assert plain == hastened
    assert sum(":" in answer for answer in plain.values()) < CALLS / 2, "most calls are refused: nothing is compared"
