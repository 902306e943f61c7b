# SPDX-License-Identifier: Apache-2.0
"""What a plain `verify_chain` hands to its kernels (plain_call.cpp says what is plain): their tails are counted along
the ways that it leaves open. The bytes lie in plain_call.json; ``python -m tools.gpu_model.plain_call`` writes it anew
where a header has changed them."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from tools.machine_code.elf import Note

HERE = Path(__file__).parent
FILE = HERE / "plain_call.json"
FEW, MANY = "few positions", "many positions"
# Not verify_positions: its warps take positions side by side, and no one thread is what all wait for.
KERNELS = {"scan_positions": FEW, "judge_rows<false>": MANY, "finish_requests": MANY}


def argument_of(kernel: str, note: Note) -> dict[int, int]:
    """Bytes of constant bank 0 by address, none for other kernels"""
    call = KERNELS.get(kernel.partition("::")[2])
    known = bytes.fromhex(json.loads(FILE.read_text())[call]) if call else b""
    return {note.argument + k: byte for k, byte in enumerate(known)}


def printed() -> dict[str, str]:
    """What the headers make of it"""
    from torch.utils.cpp_extension import include_paths

    folders = [*include_paths(), sysconfig.get_paths()["include"]]
    flags = "-w -std=c++20 -O1 -DSPECDEC_CUDA_ON_CPU -DTORCH_TARGET_VERSION=0x020a000000000000"
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "plain_call"
        command = [os.environ.get("CXX", "g++"), *flags.split(), f"-I{HERE.parent / 'cuda_on_cpu'}"]
        command += [f"-isystem{x}" for x in folders] + [str(HERE / "plain_call.cpp"), "-o", str(program)]
        # Headers name functions of the harness and of torch, and nothing calls them.
        subprocess.run([*command, "-Wl,--unresolved-symbols=ignore-all"], check=True)
        few, many = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
    return {FEW: few, MANY: many}


if __name__ == "__main__":
    FILE.write_text(json.dumps(printed(), indent=1) + "\n")
