# SPDX-License-Identifier: Apache-2.0
"""Constants of machines in one table: each a band from kind to hard, with where it comes from.

S: backed by a source of SOURCES. A: assumed. A new constant gets a source and a band, or says that it is assumed.
"""

from __future__ import annotations

from typing import NamedTuple

BANDS = ("kind", "middle", "hard")
Band = tuple[float, float, float]


class Constant(NamedTuple):
    band: Band  # kind, middle, hard
    source: str
    what: str


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

CONSTANTS = {  # in clocks unless the name says otherwise
    "hbm_eff": Constant((0.93, 0.90, 0.86), "S1", "share of the data sheet's bandwidth that a long stream gets"),
    "dram_lat": Constant((550, 720, 950), "S2", "load to use, unloaded, translation hit; the queue comes on top"),
    "l2_lat": Constant((240, 300, 400), "S2", "load to use from L2"),
    "sm_bw": Constant((64, 64, 64), "A", "bytes a clock into an SM, by design; clusters.py has 56, 48, 38"),
    "issue": Constant((0.90, 0.80, 0.70), "A", "share of issue slots that unrolled loops keep busy"),
    "cpi": Constant((1.6, 2.3, 3.2), "A", "clocks an instruction of one warp that has its scheduler alone, unrolled"),
    "gap_us": Constant((0.6, 1.1, 1.6), "S3", "end of a kernel to the first instruction of the next, in a graph"),
    "first_us": Constant((1.5, 2.2, 3.0), "S3", "launch of the first kernel, and the end that an event sees"),
    "memset_us": Constant((0.8, 1.2, 1.8), "A", "a small cudaMemsetAsync node, its gap included"),
    "prologue": Constant((500, 900, 1500), "A", "parameters, indices, first dependent loads of a block"),
    "fence": Constant((250, 600, 1200), "S4", "__threadfence by all threads while loads of others are under way"),
    "atomic": Constant((350, 600, 900), "S4", "atomicAdd and its answer, then a barrier"),
    "law": Constant((1500, 2700, 4200), "A", "a row's four floats by a block: shuffles in double, barriers, log, exp"),
    "judge": Constant((2000, 4000, 6500), "A", "one thread's test of a draft: dependent loads, doubles"),
    "finish_pro": Constant(
        (600, 900, 1500), "A", "a stop and what was found at it: two loads in turn from L2, a barrier"
    ),
    "draw": Constant((3000, 5500, 8500), "A", "two picks: scans in double, a rescan of one chunk"),
    "cluster": Constant((400, 850, 1100), "S5", "a cluster's barrier with distributed shared memory behind it"),
    "start": Constant((150, 250, 400), "A", "a block's slot freed to the next block's first instruction"),
}

SOURCES = """\
S1 Measured on H200s: copy 4.3 of 4.8 TB/s = 0.90. H100: QuACK's softmax of 16k x 131k fp32 by clusters of 4, 3.01 of
   3.35 TB/s = 0.90 by ncu (Dao-AILab/quack, media/2025-07-10-membound-sol.md); rmsnorm of 1024 x 262144 bf16, 359.9 us
   = ~3.0 TB/s, and 463 us = 0.69 for a kernel that exchanges through a cluster of 16 (Hugging Face,
   AccRL/accrl-training, discussion 33). What 2 to 70 MB get is ramp and tail, which the simulation makes.
S2 QuACK's page, H100: shared memory 10-20 ns, L2 150-200 ns, DRAM ~400 ns: at 1.83 GHz 275-365 and ~730 clocks. L40:
   L2 222-339 clocks by SM (arXiv 2606.22588).
S3 ocannl#488: no-op kernels on an RTX 5070 Ti laptop, 2.7 us to enqueue one, 0.58 us a node inside a graph. Dependent
   kernels that do something drain and ramp besides: 1.1 is an assumption; no H200 figure was found.
S4 Qualitative only: pytorch#160979 (ROCm/pytorch#2536) finds the fence of all threads dear on AMD and minimal on
   NVIDIA; the middle may be too dear.
S5 cluster.sync() of 2 blocks: 851 clocks on an H100, 404 on an RTX 5090 (a paper's table, second hand); every warp
   issues MEMBAR.ALL.GPU and drops its L1 (read in SASS).
S6 Mesa, src/nouveau/compiler/nak/sm80_instr_latencies.rs: register scheduling of Ampere and Ada as NVIDIA gave it.
   Read after write: ALU and FMA 4 to 5 clocks, wide IMAD up to 6, doubles 6 to 10, to a double 6.
S7 Mesa, nak/opt_instr_sched_common.rs, after Jia et al. 2019 (arXiv 1903.07486, Turing T4): MUFU, conversions, shuffles
   15 clocks, doubles 48 to 54 (a T4's are slow), memory that hits L1 32, control flow 16.
S8 PMC10448217, table 3: clocks of V100, A100 and H100: arithmetic 4, shared memory 20, L2 200, global memory 400.
S9 arXiv 2208.11174, A100: an addition takes 4 clocks where the next one needs it, and 2 where it does not.
Checks of "one block walks a row", in order of magnitude, not of the same work: imp#745, RTX 5090: three scans of ~150k
   logits by one block 737 us, 83 us shared; flashinfer#2945, B200: one block of 1024 threads, V = 128512 fp32, several
   rounds 58-170 us a row; sglang#33237: a top-k of 65536 fp32 by one block 37 us, shared 11. Ours: ~25-60 us a pass of
   256 threads. Doubles: flashinfer#2945, B300: 1134 us with doubles in the search loop, 165 without.
Not modelled: translation misses, L2's two partitions, DRAM refresh and banks, clocks under power, instruction cache
   (kernels of up to 90k instructions), imbalance of the block scheduler, diverged warps."""


def constants(gpu: str, band: str = "middle") -> dict[str, float]:
    """Every constant at the same end of its band: what is wrong here is wrong in all of them together, so independent
    draws, which average out, would flatter."""
    k = BANDS.index(band)
    c = {name: constant.band[k] for name, constant in CONSTANTS.items()}
    g = GPUS[gpu]
    c |= {"sms": g.sms, "clk": g.clock[k], "l2": g.l2}
    c["bpc"] = g.memory * c["hbm_eff"] / c["clk"]  # bytes a clock from HBM
    return c


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
