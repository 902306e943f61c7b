# SPDX-License-Identifier: Apache-2.0
"""GPUs: how many SMs, clocks, memory and registers they have, and what of a kernel fits or fills them."""

from __future__ import annotations

from typing import NamedTuple

Band = tuple[float, float, float]  # kind, middle, hard


class Gpu(NamedTuple):
    sms: int
    clock: Band  # Hz, kind first
    sustained: float  # Hz: the low side, at which ceilings of loops are taken
    memory: float  # B/s, the data sheet's
    l2: float  # bytes
    gpcs: tuple[int, ...]  # SMs of each cluster of SMs


# SMs by GPC of Hopper are assumed: they leave room for 15 clusters of 8 blocks, and for 7 of 16, at one block an SM
HOPPER = (16, 16, 16, 16, 18, 18, 18, 14)
GPUS = {
    # 1.98 GHz was read off an H200 behind matrix products, the rest is assumed; memory and L2 are the data sheets'
    "H200": Gpu(132, (1.98e9, 1.83e9, 1.70e9), 1.75e9, 4.8e12, 50e6, HOPPER),
    "H100": Gpu(132, (1.98e9, 1.83e9, 1.70e9), 1.75e9, 3.35e12, 50e6, HOPPER),
    "B200": Gpu(148, (1.96e9, 1.85e9, 1.70e9), 1.75e9, 8.0e12, 126e6, ()),  # clocks assumed
}
ARCHS = {"H100": "sm_90", "H200": "sm_90", "B200": "sm_100"}

# Of an SM of sm_90 and sm_100 (CUDA programming guide, compute capabilities)
REGISTERS, THREADS, BLOCKS, SHARED = 65536, 2048, 32, 228 * 1024
MUFU_LANES = 16  # a clock


def ceilings(gpu: str, counts: dict[str, int]) -> tuple[dict[str, float], str, dict[str, float]]:
    """B/s of a loop that each resource allows, the least of them, and each as a share of the memory's bandwidth. One
    warp's trip against an SM's pipes: issue 4 warp instructions a clock, ALU 64 lanes, FMA 128, IMAD 64, MUFU and
    conversions 16, doubles 64, LSU one warp instruction (CUDA programming guide, arithmetic throughput of 9.0 and
    10.0). They are what full pipes would allow; real loops keep "issue" of a slot busy."""
    g, n = GPUS[gpu], lambda name: counts.get(name, 0)
    clocks = {
        "issue": n("instr") / 4,
        "alu": n("pipe_alu") / 2,
        "fma": n("pipe_fma") / 4,
        "imad": n("pipe_imad") / 2,
        "fp64": n("pipe_fp64") / 2,
        "mufu": n("pipe_xu") * 32 / MUFU_LANES,
        "lsu": n("pipe_lsu") + 3 * n("bytes") / 16,
    }
    rates = {name: n("bytes") * 32 / clock * g.sms * g.sustained for name, clock in clocks.items() if clock}
    return rates, min(rates, key=lambda name: rates[name]), {name: rate / g.memory for name, rate in rates.items()}


def resident(registers: int, shared: int, threads: int) -> tuple[int, str]:
    """Blocks of a kernel that fit an SM, and what sets their number. A block's shared memory has a kilobyte more."""
    warps, per_thread = -(-threads // 32), -(-max(registers, 1) // 8) * 8
    by_registers = REGISTERS // (per_thread * 32 * warps)
    by_shared = SHARED // (-(-(shared + 1024) // 128) * 128)
    n = max(0, min(by_registers, by_shared, BLOCKS, THREADS // threads))
    return n, "registers" if by_registers == n else "shared" if by_shared == n else "threads"
