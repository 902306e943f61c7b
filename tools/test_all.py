# SPDX-License-Identifier: Apache-2.0
"""All tests on all backends, in parts: python -m tools.test_all [part ...] [--again] [--list]

A part that passed is not run again on the same tree, unless it is named or --again is given. Results are kept in
build/test-all/, with a hash of the tree.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "test-all"
MUTANTS = [
    "python_tests/rules/test_rules_source_mutants.py",
    "python_tests/ops/test_compiled_mutants.py",
    "python_tests/package/test_cuda_on_cpu.py",
    "python_tests/sharded/test_sharded_mutants.py",
]
GATES = ["python_tests/package/test_gates.py"]
EVERYTHING = ["python_tests"]
HERE = "cpu,cuda-on-cpu,triton-interpret"

# part: (backends whose tests it runs, arguments of pytest)
PARTS = {
    "cpu": (HERE, [*EVERYTHING, "-m", "not simulated", *(f"--ignore={file}" for file in MUTANTS + GATES)]),
    "cuda-on-cpu": ("cuda-on-cpu", [*EVERYTHING, "-m", "simulated"]),
    "triton-interpret": ("triton-interpret", [*EVERYTHING, "-m", "simulated"]),
    "gpu": ("cuda,triton", [*EVERYTHING, "-m", "on_backend"]),
    "mutants": (HERE, MUTANTS),
    "gates": (HERE, GATES),
}


def why_not(part):
    """Return why a part cannot run here, or None."""
    import torch

    return "no GPU here" if part == "gpu" and not torch.cuda.is_available() else None


def tree_state():
    """Return a hash of every file that git tracks or would add, and of the versions of Python and torch."""
    import torch

    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout.split(b"\0")
    state = hashlib.sha256(f"{sys.version} {torch.__version__}".encode())
    for path in sorted(Path(os.fsdecode(name)) for name in names if name):
        if (ROOT / path).is_file():
            state.update(f"\0{path}\0".encode() + (ROOT / path).read_bytes())
    return state.hexdigest()


def passed(part, state):
    stamp = OUT / f"{part}.passed"
    return stamp.exists() and stamp.read_text() == state


def run(part, state):
    """Run a part, with results in build/test-all/<part>.xml; return whether it passed."""
    names, arguments = PARTS[part]
    environment = os.environ | {"SPECDEC_TEST": "all", "SPECDEC_TEST_BACKENDS": names}
    pytest = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal", f"--junitxml={OUT / part}.xml"]
    done = subprocess.run([*pytest, *arguments], cwd=ROOT, env=environment)
    if done.returncode == 0:
        (OUT / f"{part}.passed").write_text(state)
    return done.returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", help=", ".join(PARTS))
    parser.add_argument("--again", action="store_true", help="also what passed on this tree")
    parser.add_argument("--list", action="store_true", help="which parts there are, and which passed on this tree")
    asked = parser.parse_args()
    if unknown := set(asked.part) - set(PARTS):
        parser.error(f"part must be one of {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    OUT.mkdir(parents=True, exist_ok=True)
    state, failed = tree_state(), []
    for part in asked.part or PARTS:
        if reason := why_not(part):
            print(f"{part}: not run: {reason}")
            continue
        if asked.list or (passed(part, state) and not asked.part and not asked.again):
            print(f"{part}: {'passed on this tree' if passed(part, state) else 'not passed on this tree'}")
            continue
        print(f"\n==== {part}", flush=True)
        began = time.monotonic()
        if not run(part, state):
            failed.append(part)
        print(
            f"==== {part}: {'FAILED' if part in failed else 'passed'} in {time.monotonic() - began:.0f} s", flush=True
        )
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
