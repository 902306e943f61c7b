# SPDX-License-Identifier: Apache-2.0
"""Disassembly of a library or a cubin by cuobjdump, and readable names of kernels."""

from __future__ import annotations

import functools
import glob
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tools.machine_code.elf import Note, notes
from tools.machine_code.instructions import Code, Instruction

CONTROL = re.compile(r"\s+/\* 0x([0-9a-f]{16}) \*/")  # the second word of an instruction
LINE = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")


@functools.cache
def cuobjdump() -> str | None:
    """Find the tool: named by CUOBJDUMP, on the PATH, in /usr/local/cuda*/bin, or in the triton package."""
    triton = importlib.util.find_spec("triton")
    candidates = [os.environ.get("CUOBJDUMP"), shutil.which("cuobjdump"), *glob.glob("/usr/local/cuda*/bin/cuobjdump")]
    if triton and triton.origin:
        candidates.append(str(Path(triton.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"))
    return next((path for path in candidates if path and os.access(path, os.X_OK)), None)


def dump(*options: str, folder: str | None = None) -> list[str]:
    """Run the tool; return the lines of its output."""
    tool = cuobjdump()
    if tool is None:
        raise FileNotFoundError("no cuobjdump: set CUOBJDUMP, or install triton or nvidia-cuda-cuobjdump")
    return subprocess.run([tool, *options], cwd=folder, capture_output=True, text=True, check=True).stdout.splitlines()


def readable(functions: Iterable[str]) -> dict[str, str]:
    """Return readable names of functions: verify_chain::scan for _ZN7specdec..._23_verify_chain_cuda_cu_...4scanE...

    Names of other forms are those of c++filt.
    """
    functions = list(functions)
    run = subprocess.run(["c++filt"], input="\n".join(functions), capture_output=True, text=True)
    plain = run.stdout.splitlines() if functions and run.returncode == 0 else functions
    return {function: _short(function, name) for function, name in zip(functions, plain)}


def _short(function: str, name: str) -> str:
    op = re.search(r"_\d+_([a-z][a-z_0-9]*?)(?:_cuda)?_cu_[0-9a-f]+", function)
    name = re.sub(r"\(specdec::\w+\)", "", name.strip()).replace("(anonymous namespace)::", "")
    name = re.sub(r"^void |specdec::|\(.*$", "", name)
    return f"{op[1]}::{name}" if op else name


def instructions(listing: Iterable[str], wanted: Callable[[str], bool] = lambda function: True) -> dict[str, Code]:
    """Return function -> its instructions, from the output of ``cuobjdump -sass``."""
    code: dict[str, Code] = {}
    current: Code | None = None
    for line in listing:
        if "&" in line or "?" in line:  # sm_120 lists "&req ?trans" after an instruction
            line = re.sub(r"\s+[&?][A-Za-z].*", " ;", line)
        if "Function :" in line:
            function = line.split(":", 1)[1].strip()
            current = code.setdefault(function, []) if wanted(function) else None
        elif current is not None and (m := LINE.match(line)):
            word = "NOP" if m[2] == "@!PT" else m[3]  # sm_90 sets "@!PT LDS RZ" before each batch of LDGSTS
            current.append(Instruction(int(m[1], 16), m[2] or "", word, m[4]))
        elif current and (m := CONTROL.fullmatch(line.rstrip())):
            current[-1] = current[-1]._replace(stall=int(m[1], 16) >> 41 & 15)
    return code


def kernels(path: str | Path, arch: str, only: str = "", skip: str = "") -> Iterator[tuple[str, Code, Note]]:
    """Yield (name, code, note) of each kernel of a library or cubin whose name matches `only`, not `skip`."""
    with tempfile.TemporaryDirectory() as folder:
        for cubin in _cubins(str(path), arch, folder):
            found = notes(cubin)
            names = readable(function for function, note in found.items() if note.bytes)
            wanted = {
                function
                for function, name in names.items()
                if (not only or re.search(only, name)) and not (skip and re.search(skip, name))
            }
            if wanted:
                for function, code in instructions(dump("-sass", cubin), wanted.__contains__).items():
                    yield names[function], code, found[function]


def _cubins(path: str, arch: str, folder: str) -> list[str]:
    if path.endswith(".cubin"):
        return [path]
    dump("-arch", arch, "-xelf", "all", os.path.abspath(path), folder=folder)
    number = lambda name: [int(x) for x in re.findall(r"\d+", os.path.basename(name))]
    return sorted(glob.glob(folder + "/*.cubin"), key=number)
