# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys

import pytest
import torch
from support import vllm_stub
from support.paths import ROOT


@pytest.fixture
def vllm_modules(monkeypatch):
    """Put stand-ins for the modules of vLLM that the plugin imports into sys.modules."""
    vllm_stub.modules(monkeypatch)


@pytest.fixture
def run_python(tmp_path):
    """Return a function that runs a program in a new process. The program saves its result to the file sys.argv[1], and
    the function returns that result."""

    def run(code, **environment):
        out = tmp_path / "out.pt"
        subprocess.run(
            [sys.executable, "-c", code, str(out)], cwd=ROOT, env=os.environ | environment, check=True, timeout=900
        )
        return torch.load(out)

    return run
