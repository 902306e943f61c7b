# SPDX-License-Identifier: Apache-2.0
"""Limits that every kernel must keep on every architecture, and a table of all kernels."""

from __future__ import annotations

from pathlib import Path

from gates.machine_code import Kernel

PAGE = Path(__file__).parents[2] / "build" / "gates" / "kernels.md"

REGISTERS = 65_536  # of a multiprocessor
REGISTERS_OF = {"gfx942": 131_072}
SHARED = {
    "sm_75": 64,
    "sm_80": 164,
    "sm_86": 100,
    "sm_87": 164,
    "sm_89": 100,
    "sm_90": 228,
    "sm_100": 228,
    "sm_120": 100,
}  # KiB of a multiprocessor


def broken(kernel: Kernel) -> list[str]:
    """Return a kernel's violated limits, in words."""
    problems = []
    if kernel.stack:
        problems.append(f"{kernel.stack} bytes of stack")
    if kernel.local:
        problems.append(f"{kernel.local} local loads and stores, or spills")
    if kernel.early:
        problems.append(f"{kernel.early} registers read too early, see tools/machine_code/hazards.py")
    if kernel.reads_rows and not any(bits >= 128 for bits in kernel.loads):
        problems.append(f"no 16-byte load: bits of loads {kernel.loads}")
    registers = REGISTERS_OF.get(kernel.arch, REGISTERS) // (kernel.threads * kernel.blocks)
    if kernel.registers > registers:
        problems.append(
            f"{kernel.registers} registers, {registers} for {kernel.blocks} blocks of {kernel.threads} threads"
        )
    shared = SHARED.get(kernel.arch, 64) * 1024 // kernel.blocks - 1024  # each block also reserves one kilobyte
    if kernel.shared > shared:
        problems.append(f"{kernel.shared} bytes of shared memory, {shared} for {kernel.blocks} blocks")
    return [f"{kernel.name} {kernel.arch}: {problem}" for problem in problems]


def write(title: str, kernels: list[Kernel]) -> str:
    """Write one compiler's table to the page, which keeps the other compiler's; return the table."""
    lines = [
        f"## {title}",
        "",
        "| kernel | arch | threads x blocks | registers | stack | local | shared | global loads | barriers |",
    ]
    lines.append("|---|---|---|--:|--:|--:|--:|---|--:|")
    for k in kernels:
        loads = ", ".join(f"{bits} x {n}" for bits, n in sorted(k.loads.items(), reverse=True)) or "none"
        bounds = f"{k.threads} x {k.blocks}"
        lines.append(
            f"| {k.name} | {k.arch} | {bounds} | {k.registers} | {k.stack} | {k.local} | {k.shared} "
            f"| {loads} | {k.barriers} |"
        )
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.with_name(f"{title}.part.md").write_text("\n".join(lines) + "\n")
    parts = [part.read_text() for part in sorted(PAGE.parent.glob("*.part.md"))]
    PAGE.write_text("\n".join([HEAD, *parts]))
    return "\n".join(lines)


HEAD = """# What the compilers made of the kernels

Written by `pytest python_tests/package/test_gates.py`. Threads x blocks: of a block, and how many
blocks the launch bounds promise to a multiprocessor. Stack, shared: bytes. Local: loads and stores of local memory.
Global loads: bits of a thread's load x instructions.
"""
