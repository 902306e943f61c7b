# SPDX-License-Identifier: Apache-2.0
"""The argument that a plain `verify_chain` (see plain_call.cpp) passes to its kernels.

Their tails are counted along the paths that are possible with it. Its bytes are in plain_call.json. After a change of a
header, ``python -m tools.gpu_model.plain_call`` writes that file again.
"""

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
KERNELS = {"scan_positions": FEW, "verify_positions": FEW, "judge_rows<false>": MANY, "finish_requests": MANY}
OF_ANY_THREAD = {"verify_positions"}  # its warps test positions in parallel, so no single thread determines the time


def argument_of(kernel: str, note: Note) -> dict[int, int]:
    """Return the argument's bytes by their address in constant bank 0; none for kernels that are not in KERNELS."""
    call = KERNELS.get(kernel.partition("::")[2])
    known = bytes.fromhex(json.loads(FILE.read_text())[call]) if call else b""
    return {note.argument + k: byte for k, byte in enumerate(known)}


def thread_of(kernel: str) -> int | None:
    """Return the thread whose path is counted: the first one, or None for the longest path of any thread."""
    return None if kernel.partition("::")[2] in OF_ANY_THREAD else 0


def printed() -> dict[str, str]:
    """Return the bytes of the argument, in hexadecimal, as the current headers lay them out."""
    from torch.utils.cpp_extension import include_paths

    from build_tools.ninja_file import TARGET

    folders = [*include_paths(), sysconfig.get_paths()["include"]]
    flags = f"-w -std=c++20 -O1 -DSPECDEC_CUDA_ON_CPU {TARGET}"
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "plain_call"
        command = [os.environ.get("CXX", "g++"), *flags.split(), f"-I{HERE.parent / 'cuda_on_cpu'}"]
        command += [f"-isystem{x}" for x in folders] + [str(HERE / "plain_call.cpp"), "-o", str(program)]
        # Headers name functions of the harness and of torch, which are never called here.
        subprocess.run([*command, "-Wl,--unresolved-symbols=ignore-all"], check=True)
        few, many = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
    return {FEW: few, MANY: many}


if __name__ == "__main__":
    FILE.write_text(json.dumps(printed(), indent=1) + "\n")
