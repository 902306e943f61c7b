# SPDX-License-Identifier: Apache-2.0
"""Data of GPUs (SMs, clocks, memory, registers), bandwidth ceilings of loops, and the occupancy of kernels."""

from __future__ import annotations

from typing import NamedTuple

Band = tuple[float, float, float]  # optimistic, nominal, pessimistic


class Gpu(NamedTuple):
    sms: int
    clock: Band  # Hz, optimistic first
    sustained: float  # Hz, a low value, used for the ceilings of loops
    memory: float  # B/s, from the data sheet
    l2: float  # bytes
    gpcs: tuple[int, ...]  # SMs of each GPC


# SMs per GPC of Hopper are assumed. At one block per SM they have room for 15 clusters of 8 blocks, or 7 of 16.
HOPPER = (16, 16, 16, 16, 18, 18, 18, 14)
GPUS = {
    # 1.98 GHz was measured on an H200 after matrix products; other clocks are assumed. Memory and L2: data sheets.
    "H200": Gpu(132, (1.98e9, 1.83e9, 1.70e9), 1.75e9, 4.8e12, 50e6, HOPPER),
    "H100": Gpu(132, (1.98e9, 1.83e9, 1.70e9), 1.75e9, 3.35e12, 50e6, HOPPER),
    "B200": Gpu(148, (1.96e9, 1.85e9, 1.70e9), 1.75e9, 8.0e12, 126e6, ()),  # clocks assumed
}
ARCHS = {"H100": "sm_90", "H200": "sm_90", "B200": "sm_100"}

# Limits of an SM of sm_90 and sm_100 (CUDA programming guide, compute capabilities)
REGISTERS, THREADS, BLOCKS, SHARED = 65536, 2048, 32, 228 * 1024
MUFU_LANES = 16  # per clock


def ceilings(gpu: str, counts: dict[str, int]) -> tuple[dict[str, float], str, dict[str, float]]:
    """Return the B/s of a loop that each resource allows, the limiting resource, and shares of the memory bandwidth.

    One warp's iteration is divided by the throughput of an SM's pipes per clock: issue 4 warp instructions, ALU 64
    lanes, FMA 128, IMAD 64, MUFU and conversions 16, doubles 64, LSU one warp instruction, of which a load of 16 bytes
    counts as four (CUDA programming guide, arithmetic throughput of 9.0 and 10.0). These are upper bounds with full
    pipes; real loops keep only a share of the issue slots busy ("issue" in tools.gpu_model's constants).
    """
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


def resident(registers: int, shared: int, threads: int) -> int:
    """Return the blocks of a kernel that fit on an SM.

    A block takes one kilobyte of shared memory more than the kernel's.
    """
    warps, per_thread = -(-threads // 32), -(-max(registers, 1) // 8) * 8
    by_registers = REGISTERS // (per_thread * 32 * warps)
    by_shared = SHARED // (-(-(shared + 1024) // 128) * 128)
    return max(0, min(by_registers, by_shared, BLOCKS, THREADS // threads))
