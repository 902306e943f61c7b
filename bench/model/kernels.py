# SPDX-License-Identifier: Apache-2.0
"""All that is read of each kernel: its streaming loops and what surrounds them."""

from __future__ import annotations

import re
from pathlib import Path

from bench.model.control_flow import Graph
from bench.model.disassembly import kernels
from bench.model.elf import Note
from bench.model.gpus import resident
from bench.model.instructions import Code, copies_asynchronously, wide
from bench.model.loops import against, streaming_loops
from bench.model.paths import weigh
from bench.model.tails import SEARCH, TAILED, Tails

THREADS = 256  # of a block whose launch bounds say nothing


def analyse(
    path: str | Path, arch: str = "sm_90", gpu: str = "H200", only: str = "", skip: str = "", tails: bool = False
) -> list[dict]:
    """What is known of each kernel of a library (or cubin) whose name matches `only` and not `skip`; with `tails` also
    what the kernels of TAILED run around their loops."""
    return [
        describe(name, symbol, code, note, gpu, tails) for name, symbol, code, note in kernels(path, arch, only, skip)
    ]


def describe(name: str, symbol: str, code: Code, note: Note, gpu: str = "H200", tails: bool = False) -> dict:
    async_kernel = copies_asynchronously(code)
    threads = note.threads or THREADS
    blocks, limit = resident(note.registers, note.shared, threads)
    kernel: dict = {
        "name": name,
        "symbol": symbol,
        "registers": note.registers,
        "frame": note.frame,
        "shared": note.shared,
        "threads": threads,
        "resident": blocks,
        "limited_by": limit,
        "local": sum(x.head in ("LDL", "STL") for x in code),
        "instructions": len(code),
        "async_copies": async_kernel,
        "loops": [],
        "wide_bytes": sum(wide(x.word, async_kernel) for x in code),
    }
    if not kernel["wide_bytes"]:
        return kernel
    g = Graph(code, note.targets)
    kernel |= {"odd_sync": g.odd_sync, "unreached": len(g.spans) - len(g.order)}
    around = Tails(g, note.routines) if tails and re.match(TAILED, name) else None
    if tails and name == SEARCH:
        kernel["turns"] = Tails(g, note.routines).turns()
    for loop, _ in streaming_loops(g, weigh(g, async_kernel), async_kernel):
        loop |= against(gpu, loop, blocks, threads)
        if around and loop["kind"] == "loop":
            loop["tails"] = around.around(int(loop["at"], 16))
        kernel["loops"].append(loop)
    return kernel
