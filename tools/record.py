# SPDX-License-Identifier: Apache-2.0
"""Record of the ops' results, bit for bit, to show that a change of the code leaves them unchanged.

    python -m tools.record before.json                     # on the old tree; SPECDEC_ISA, SPECDEC_BACKEND as elsewhere
    python -m tools.record after.json                      # on the new one
    python -m tools.record --compare before.json after.json

The calls are those of python_tests/gates/hostile.py: every op, with ordinary and hostile arguments, drawn from --seed.
SPECDEC_CUDA_ON_CPU=fast records the simulated device. SPECDEC_BACKEND=triton TRITON_INTERPRET=1 records interpreted
Triton, sped up as in tests (python_tests/support/interpreter.py), or unchanged with --plain.
"""

import argparse
import functools
import hashlib
import json
import os
import random
import sys
import warnings
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1] / "python_tests"))
from gates import hostile  # noqa: E402
from support import flat, interpreter  # noqa: E402

import specdec_kernels as sk  # noqa: E402
from specdec_kernels import example_calls  # noqa: E402


def digest(result) -> str:
    """Return a digest of every bit of the tensors, in which all NaNs count as equal."""
    sha = hashlib.sha256()
    for x in hostile.tensors(result):
        x = torch.where(x.isnan(), torch.full_like(x, float("nan")), x) if x.is_floating_point() else x
        sha.update(
            f"{x.dtype} {list(x.shape)}".encode() + x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        )
    return sha.hexdigest()[:16]


def answer(op, args) -> str:
    try:
        return digest(example_calls.outcome(op, functools.partial(flat.call, getattr(sk, op)), **args))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def record(calls: int, seed: int, ops: list[str]) -> dict[str, str]:
    answers = {}
    for i in range(calls):
        op, rng = ops[i % len(ops)], random.Random(f"{seed} {i}")
        answers[f"{i} {op}"] = answer(op, hostile.call(op, rng))
    return answers


def compare(before: dict, after: dict) -> int:
    """Print the first 20 calls that differ; return the number of all."""
    different = [call for call in before if before[call] != after.get(call)]
    for call in different[:20]:
        print(f"{call}: {before[call]} -> {after.get(call)}")
    print(f"{len(different)} of {len(before)} calls differ")
    return len(different)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--op", choices=hostile.OPS, action="append")
    parser.add_argument("--plain", action="store_true", help="Triton's interpreter as it comes")
    chosen = parser.parse_args()
    if chosen.compare:
        return compare(*(json.loads(Path(file).read_text()) for file in chosen.files)) > 0
    warnings.simplefilter("ignore")
    if os.environ.get("TRITON_INTERPRET") == "1" and not chosen.plain:
        interpreter.hasten()
    if flavour := os.environ.get("SPECDEC_CUDA_ON_CPU"):
        from tools.cuda_on_cpu.build import load

        load(flavour)
    Path(chosen.files[0]).write_text(
        json.dumps(record(chosen.calls, chosen.seed, chosen.op or list(hostile.OPS)), indent=0)
    )
    print(f"{chosen.calls} calls of {sk.__file__}, {sk.backends.cpu_isa()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
