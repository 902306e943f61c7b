# SPDX-License-Identifier: Apache-2.0
"""The oldest Triton that pyproject.toml allows interprets every op, answers what the CPU's op does, and
compiles every kernel."""

import os
import re
import subprocess
import sys

import pytest
import torch
from support import backends, paths, tiers
from torch.utils._pytree import tree_leaves

from specdec_kernels import example_calls, registry

VERSION = re.search(r'"triton>=([\d.]+)', (paths.ROOT / "pyproject.toml").read_text())[1] + ".0"
FOLDER = paths.ROOT / "build" / f"triton-{VERSION}"  # kept from run to run
PIP = [
    "install",
    "--quiet",
    "--no-deps",
    "--no-compile",
    "--retries",
    "0",
    "--timeout",
    "20",
    "--disable-pip-version-check",
]


def calls(op):
    return example_calls.few(op) if tiers.TIER == "all" else example_calls.calls(op)[:1]


def tensors(op, arguments):
    import specdec_kernels as sk

    return [x for x in tree_leaves(getattr(sk, op)(**arguments)) if isinstance(x, torch.Tensor)]


def installed():
    """The folder to import it from, in front of all others."""
    if not FOLDER.exists():
        fresh = FOLDER.with_name(f"{FOLDER.name}.{os.getpid()}")
        command = [sys.executable, "-m", "pip", *PIP, "--target", str(fresh), f"triton=={VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode:
            pytest.skip(f"triton {VERSION} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
        fresh.rename(FOLDER)
    return FOLDER


def answers(path):
    """What a process that imports it answers to the examples: {op: [tensors of each]}"""
    import triton

    import specdec_kernels as sk

    assert triton.__version__ == VERSION and sk.backends.chosen() == "triton"
    inputs = torch.load(path, weights_only=False)
    torch.save({op: [tensors(op, each) for each in given] for op, given in inputs.items()}, path)


@pytest.mark.slow
@pytest.mark.skipif("triton-interpret" not in backends.NAMES, reason="not among the backends that were asked for")
def test_it_answers_as_the_cpu_does(tmp_path):
    given = {op: [call.arguments for call in calls(op)] for op in registry.OPS}
    path = tmp_path / "answers.pt"
    torch.save(given, path)
    environment = {
        "SPECDEC_BACKEND": "triton",
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join([str(installed()), paths.PYTHONPATH]),
    }
    command = [sys.executable, "-c", f"import test_oldest_triton as here; here.answers({str(path)!r})"]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    assert not done.returncode, done.stdout + done.stderr
    for op, found in torch.load(path, weights_only=False).items():
        for arguments, got in zip(given[op], found, strict=True):
            want = tensors(op, arguments)
            for x, y in zip(got, want, strict=True):
                torch.testing.assert_close(
                    x, y, rtol=1e-5, atol=1e-5, equal_nan=True, msg=lambda text, op=op: f"{op}: {text}"
                )


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.skipif("triton-interpret" not in backends.NAMES, reason="not among the backends that were asked for")
def test_its_compiler_takes_every_kernel():
    """Its front end, as test_gates.py asks the newest one's: nothing that it refuses shows when interpreted."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(installed()), paths.PYTHONPATH])}
    program = f"import triton, test_gates as t; assert triton.__version__ == {VERSION!r}; t."
    program += "test_every_triton_kernel_is_well_typed()"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert not done.returncode, done.stderr
