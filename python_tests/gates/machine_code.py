# SPDX-License-Identifier: Apache-2.0
"""Resources and instructions of each compiled kernel, read from cuobjdump (NVIDIA) or from the assembly (AMD)."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

from tools.machine_code.disassembly import dump, instructions, readable
from tools.machine_code.hazards import early_reads
from tools.machine_code.instructions import bits


class Kernel(NamedTuple):
    name: str
    arch: str  # sm_90, gfx942
    registers: int
    stack: int  # bytes per thread
    local: int  # instructions that access local memory, or registers spilled to it
    shared: int  # bytes per block
    loads: dict  # bits of one thread's global load -> number of such instructions
    barriers: int  # instructions that wait for the other threads of the block
    reads_rows: bool = True
    threads: int = 256  # per block
    blocks: int = 1  # per multiprocessor, at least, as the launch bounds require
    early: int = 0  # instructions that read a register before its last write has arrived


def nvidia(path: Path) -> list[Kernel]:
    """Return all kernels of a fat binary or a cubin, sorted by name, then arch.

    Launch bounds are read from PTX if there is any.
    """
    kernels, without_rows = (
        [],
        r"\b(uniforms|accept|budget|build_tree|grow_tree|tree_mask|count_tokens_)::|\bname_argmax\b|\b(make_views|list_tables|list_entries)<",
    )
    code, bounds = _instructions(path), _launch_bounds(path)
    names = readable({function for _, function in code})
    for arch, function, usage in _usage(path):
        arch = arch or next(iter(code))[0]  # a bare cubin has one arch
        here = code[arch, function]
        threads, blocks = bounds.get(function, (256, 1))
        kernels.append(
            Kernel(
                name=names[function],
                arch=arch,
                registers=usage["REG"],
                stack=usage["STACK"] + usage["LOCAL"],
                local=sum(x.head in ("LDL", "STL") for x in here),
                shared=usage["SHARED"],
                loads=dict(Counter(bits(x.word) for x in here if x.head == "LDG")),
                barriers=sum(x.head == "BAR" for x in here),
                reads_rows=not re.search(without_rows, names[function]),
                threads=threads,
                blocks=blocks,
                early=len(early_reads(here)),
            )
        )
    return sorted(kernels, key=lambda k: (k.name, int(k.arch[3:])))


def _usage(path):
    arch = function = None
    for line in dump("-res-usage", str(path)):
        if match := re.match(r"arch = (sm_\d+)", line):
            arch = match[1]
        elif match := re.match(r"\s*Function (\S+):", line):
            function = match[1]
        elif function and "REG:" in line:
            yield arch, function, {key: int(value) for key, value in re.findall(r"(\w+):(\d+)", line)}
            function = None


def _instructions(path):
    """Return (arch, function) -> its instructions."""
    lines, arch = defaultdict(list), None
    for line in dump("-sass", str(path)):
        if match := re.match(r"\s*code for (sm_\d+)", line):
            arch = match[1]
        lines[arch].append(line)
    return {(arch, name): code for arch, listing in lines.items() for name, code in instructions(listing).items()}


def _launch_bounds(path):
    """Return function -> (threads, blocks), read from the PTX."""
    bounds, function = {}, None
    for line in dump("-ptx", str(path)):
        if match := re.search(r"\.entry (\w+)", line):
            function = match[1]
        elif match := re.match(r"\.(maxntid|minnctapersm) (\d+)", line):
            threads, blocks = bounds.get(function, (256, 1))
            bounds[function] = (int(match[2]), blocks) if match[1] == "maxntid" else (threads, int(match[2]))
    return bounds


def amd(name: str, assembly: str, reads_rows: bool, threads: int) -> Kernel:
    """Return one kernel of AMD assembly, from its metadata and the widths of its loads."""

    def note(key):
        return int(re.search(rf"\.{key}:\s+(\d+)", assembly)[1])

    widths = re.findall(r"\b(?:global|buffer)_load_(?:dword(x[234])?|(?:[us]?(?:byte|short))\w*)", assembly)
    loads = Counter({"x4": 128, "x3": 96, "x2": 64, "": 32}[width] for width in widths)
    return Kernel(
        name=name,
        arch=re.search(r"gfx\w+", assembly)[0],
        registers=note("vgpr_count"),
        stack=note("private_segment_fixed_size"),
        local=note("vgpr_spill_count"),
        shared=note("group_segment_fixed_size"),
        loads=dict(loads),
        barriers=len(re.findall(r"\bs_barrier\b", assembly)),
        reads_rows=reads_rows,
        threads=threads,
    )
