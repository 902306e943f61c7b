# SPDX-License-Identifier: Apache-2.0
"""Description of kernels: their resources and streaming loops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tools.machine_code.control_flow import Graph
from tools.machine_code.disassembly import kernels
from tools.machine_code.elf import Note
from tools.machine_code.gpus import resident
from tools.machine_code.instructions import Code, copies_asynchronously, wide
from tools.machine_code.loops import against, streaming_loops
from tools.machine_code.paths import weigh

THREADS = 256  # threads of a block without launch bounds

Also = Callable[[dict, Graph, Note], None]  # adds more to a kernel's description


def analyse(
    path: str | Path, arch: str = "sm_90", gpu: str = "H200", only: str = "", skip: str = "", also: Also | None = None
) -> list[dict]:
    """Describe each kernel of a library (or cubin) whose name matches `only` and not `skip`."""
    return [describe(name, code, note, gpu, also) for name, code, note in kernels(path, arch, only, skip)]


def describe(name: str, code: Code, note: Note, gpu: str = "H200", also: Also | None = None) -> dict:
    async_kernel = copies_asynchronously(code)
    threads = note.threads or THREADS
    blocks = resident(note.registers, note.shared, threads)
    kernel: dict = {
        "name": name,
        "registers": note.registers,
        "shared": note.shared,
        "threads": threads,
        "resident": blocks,
        "local": sum(x.head in ("LDL", "STL") for x in code),
        "loops": [],
        "wide_bytes": sum(wide(x.word, async_kernel) for x in code),
    }
    if not kernel["wide_bytes"]:
        return kernel
    g = Graph(code, note.targets)
    for loop in streaming_loops(g, weigh(g, async_kernel), async_kernel):
        kernel["loops"].append(loop | against(gpu, loop, blocks, threads))
    if also:
        also(kernel, g, note)
    return kernel
