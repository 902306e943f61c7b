# SPDX-License-Identifier: Apache-2.0
"""The oldest Triton that pyproject.toml allows: it interprets every op with the CPU op's results up to rounding, and
its compiler takes the kernels for bfloat16 rows."""

import json
import os
import re
import subprocess
import sys

import pytest
import torch
from gates import triton_kernels
from support import backends, example_answers, paths, tiers

from specdec_kernels import example_calls, registry

VERSION = re.search(r'"triton>=([\d.]+)', (paths.ROOT / "pyproject.toml").read_text())[1] + ".0"
FOLDER = paths.ROOT / "build" / f"triton-{VERSION}"  # kept between runs
THE_OLDEST = f"import triton; assert triton.__version__ == {VERSION!r}"  # the start of a new process's program
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


def installed():
    """Install the oldest Triton if it is not there yet. Return its folder, which callers put first on the import
    path."""
    if not FOLDER.exists():
        fresh = FOLDER.with_name(f"{FOLDER.name}.{os.getpid()}")
        command = [sys.executable, "-m", "pip", *PIP, "--target", str(fresh), f"triton=={VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode:
            pytest.skip(f"triton {VERSION} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
        fresh.rename(FOLDER)
    return FOLDER


@pytest.mark.slow
@pytest.mark.skipif("triton-interpret" not in backends.NAMES, reason="not among the backends that were asked for")
def test_it_answers_as_the_cpu_does(tmp_path):
    given = {op: [call.arguments for call in backends.served("triton", op, calls(op))] for op in registry.OPS}
    path = tmp_path / "answers.pt"
    torch.save(given, path)
    environment = {
        "SPECDEC_BACKEND": "triton",
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join([str(installed()), paths.PYTHONPATH]),
    }
    program = f"{THE_OLDEST}; from support import example_answers; example_answers.write({str(path)!r})"
    done = subprocess.run([sys.executable, "-c", program], env=os.environ | environment, capture_output=True, text=True)
    assert not done.returncode, done.stdout + done.stderr
    for op, found in torch.load(path, weights_only=False).items():
        for arguments, got in zip(given[op], found, strict=True):
            want = example_answers.tensors(op, arguments)
            for x, y in zip(got, want, strict=True):
                torch.testing.assert_close(
                    x, y, rtol=1e-5, atol=1e-5, equal_nan=True, msg=lambda text, op=op: f"{op}: {text}"
                )


def compiled_by_it(program):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(installed()), paths.PYTHONPATH])}
    environment["TRITON_CACHE_DIR"] = str(FOLDER / "cache")
    program = f"{THE_OLDEST}; import json; from gates import triton_kernels; {program}"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert not done.returncode, done.stderr[-2000:]
    return done.stdout


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.skipif("triton-interpret" not in backends.NAMES, reason="not among the backends that were asked for")
def test_it_makes_the_same_of_every_kernel():
    """The oldest Triton makes the same operations as the installed one of each kernel for bfloat16 rows. The
    interpreter would not show code that the compiler refuses, or a constant that it drops."""
    found = json.loads(compiled_by_it("print(json.dumps(triton_kernels.operations()))"))
    assert found == {name: dict(counts) for name, counts in triton_kernels.operations().items()}


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.skipif("triton-interpret" not in backends.NAMES, reason="not among the backends that were asked for")
def test_it_compiles_narrow_tiles():
    compiled_by_it("triton_kernels.compile_narrow()")
