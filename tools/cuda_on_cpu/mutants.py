# SPDX-License-Identifier: Apache-2.0
"""Mutants of csrc: copies with one deliberate error, and how each must be detected."""

import hashlib
from pathlib import Path
from typing import NamedTuple

from tools.mutate import changed

from .build import ROOT


def mutate(csrc, file, old, new):
    """Copy the tree `csrc` and replace `old`, which must occur once in `file`, by `new`; return the copy's path."""
    csrc = Path(csrc)
    name = hashlib.sha256(f"{csrc} {file} {old} {new}".encode()).hexdigest()[:12]
    copy = ROOT / "build" / "cuda_on_cpu" / "mutants" / name
    sources = {p.relative_to(csrc): p.read_text() for p in csrc.rglob("*") if p.is_file()}
    sources[Path(file)] = changed(sources[Path(file)], old, new)
    for path in [p for p in copy.rglob("*") if p.is_file() and p.relative_to(copy) not in sources]:
        path.unlink()
    for path, text in sources.items():
        if not (copy / path).exists() or (copy / path).read_text() != text:  # an unchanged file is not compiled again
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            (copy / path).write_text(text)
    return copy


class Mutant(NamedTuple):
    file: str
    old: str
    new: str
    caught: str  # a pattern of the error; "outside": it reads between rows; "wrong": only its result is wrong
    op: str = "row_stats"  # the op that shows the error
    # Runs only with SPECDEC_THOROUGH=1: another mutant tests the same, and each takes half a minute to compile.
    thorough: bool = False


BLOCK, GROUPS, VERIFY = "cuda/thread_block.cuh", "cuda/groups.cuh", "ops/verify_chain/verify_chain_cuda.cu"
SCAN, SMALL = "cuda/warp_scan.cuh", "ops/verify_chain/small_batch.cuh"
HISTOGRAM = "cuda/logit_histogram.cuh"
SPECIAL, REDUCE, END = "cuda/special_chunks.cuh", "cuda/chunk_reduce.cuh", "ops/verify_chain/chain_end.cuh"
DRAW = "cuda/chunk_draw.cuh"
PAIR, SEARCH = "cuda/pair_search.cuh", "ops/kseq_rho/kseq_rho_cuda.cu"
TEAM, WALK = "cuda/residual_executor.cuh", "ops/verify_tree/walk.h"
NEVER_WRITTEN = "undefined|uninitialised|misaligned|wrong"  # errors of a mutant that reads unwritten memory

MUTANTS = {
    "barrier removed": Mutant(
        BLOCK, "  __syncthreads();\n  x = of_warp[0];", "  x = of_warp[0];", "race: .* shared memory|uninitialised"
    ),
    "barrier in two branches": Mutant(
        BLOCK,
        "  if (threadIdx.x % kLanes == 0) of_warp[threadIdx.x / kLanes] = x;\n  __syncthreads();",
        "  if (threadIdx.x % kLanes == 0) {\n    of_warp[threadIdx.x / kLanes] = x;\n    __syncthreads();\n"
        "  } else {\n    __syncthreads();\n  }",
        "divergent",
    ),
    "shuffle in a branch": Mutant(
        SCAN,
        "    const T other = __shfl_up_sync(kFullWarp, x, step);\n    if (lane >= step) x += other;",
        "    if (lane >= step) x += __shfl_up_sync(kFullWarp, x, step);",
        "divergent|deadlock",
    ),
    "shuffle of half a warp": Mutant(
        SCAN, "_sync(kFullWarp, upto, 1)", "_sync(0xffffu, upto, 1)", "mask that is not full", thorough=True
    ),
    "shared variable not written": Mutant(
        BLOCK, "if (lane == kLanes - 1) warp_totals", "if (lane < 0) warp_totals", "uninitialised", thorough=True
    ),
    "no fence before the counter": Mutant(
        BLOCK, "  __threadfence();\n  const int before =", "  const int before =", "race: .* no __threadfence"
    ),
    "counter without an atomic": Mutant(
        BLOCK, "atomicAdd(arrived, 1);", "(*arrived)++;", "race: .* no atomic orders", thorough=True
    ),
    "last to start taken for last to end": Mutant(
        BLOCK,
        "take_ticket(arrived) == blocks - 1",
        "int(blockIdx.x) % blocks == blocks - 1",
        "race: .* no atomic orders",
        thorough=True,
    ),
    "alignment not asked": Mutant(GROUPS, "!aligned(row) || ", "", "misaligned"),
    "alignment of whole chunks not asked": Mutant(
        GROUPS, "aligned(row) ? int(row.V / kChunk) : 0", "int(row.V / kChunk)", "misaligned", thorough=True
    ),
    "one group past the row": Mutant(
        GROUPS, "group_begin(first + j) < left", "group_begin(first + j) <= left", "outside", thorough=True
    ),
    "a chunk past the row": Mutant(
        GROUPS, "int(row.V / kChunk) : 0", "int(chunk_count(row.V)) : 0", "outside", thorough=True
    ),
    "carry between the words of a bin's mass forgotten": Mutant(
        HISTOGRAM, "atomicAdd(&s.low[at], low) > ~low", "(atomicAdd(&s.low[at], low), false)", "wrong", thorough=True
    ),
    "bins read before all entries are in": Mutant(
        HISTOGRAM,
        "    __syncthreads();\n    if (threadIdx.x < kLanes) leave_choice",
        "    if (threadIdx.x < kLanes) leave_choice",
        "race: .* shared memory",
        thorough=True,
    ),
    "stop read without an atomic": Mutant(
        VERIFY, "atomicAdd(s.stop + b, 0)", "s.stop[b]", "race: it reads .* updated", "verify_chain", True
    ),
    "the last with weight in place of the first beyond": Mutant(
        SCAN, "beyond ? __ffs(int(beyond)) - 1 : any", "any", "wrong", "verify_chain", True
    ),
    "what was found of another request": Mutant(
        VERIFY, "s.stops[i * a.B + b]", "s.stops[i * a.B]", NEVER_WRITTEN, "verify_chain", True
    ),
    "stop one row early": Mutant(
        VERIFY,
        "a.G + 1 - s.stop[b], chunks",
        "a.G + 1 - s.stop[b] - (s.stop[b] <= a.G), chunks",
        NEVER_WRITTEN,
        "verify_chain",
        True,
    ),
    "small batch: a counter as an earlier call left it": Mutant(
        SMALL, "threadIdx.x == 0) s.summed[b] = 0;", "threadIdx.x == 0) {}", "uninitialised|wrong", "verify_chain", True
    ),
    "small batch: tests read before they are written": Mutant(
        SMALL, "  __syncthreads();\n  int i = 0;", "  int i = 0;", "race|uninitialised|wrong", "verify_chain"
    ),
    "small batch: the stop of the first position": Mutant(
        SMALL, "finish_at(s, tests[i]", "finish_at(s, tests[0]", "wrong", "verify_chain", True
    ),
    "a special chunk summed twice": Mutant(
        REDUCE,
        "if (special.has(c)) return;\n        const float s = reaches",
        "const float s = reaches",
        "read twice",
        "verify_chain",
    ),
    "the set of special chunks read before it is made": Mutant(
        SPECIAL, "? bit(chunk) : 0;\n    __syncthreads();", "? bit(chunk) : 0;", "race|uninitialised", "verify_chain"
    ),
    "a special chunk left as its law's sum": Mutant(
        SPECIAL, "(special.of_warp(base) | from(first))", "from(first)", "wrong|uninitialised", "verify_chain", True
    ),
    "a chunk with NaN summed as a plain one": Mutant(
        REDUCE, "if (s != s) return special.add(c);", "", "wrong", "verify_chain"
    ),
    "a draft's weight above 1 taken for plain": Mutant(
        "cuda/weights.cuh",
        "plain ? sum[0] + sum[1] : NAN",
        "sum[0] + sum[1] + 0 * plain",
        "wrong",
        "verify_chain",
        True,
    ),
    "sums of a law that a chunk of is not yet in": Mutant(
        END,
        "if (!last_block(s.summed + end.b, end.summed ? 1 : s.residual_blocks)) return;",
        "if (!end.summed && !last_block(s.summed + end.b, s.residual_blocks)) return;",
        "race",
        "verify_chain",
        True,
    ),
    "a token told by another thread than the one that found it": Mutant(
        END, "leads_ = finds_in_chunk(*chosen_, w_, id);", "finds_in_chunk(*chosen_, w_, id);", "wrong", "verify_chain"
    ),
    "the chosen chunk read before it is chosen": Mutant(
        DRAW,
        "choose(&shared.get());\n  __syncthreads();",
        "choose(&shared.get());",
        "race|uninitialised",
        "verify_chain",
    ),
    "what lies beyond a row counted as its last entry": Mutant(
        GROUPS, "z[r] = r < left ? z[r] : pad;", "z[r] = r < N ? z[r] : pad;", "wrong", "verify_chain"
    ),
    "small batch: the law's sums of another position": Mutant(
        SMALL, "at.test, plain + i * chunks", "at.test, plain", "wrong|uninit", "verify_chain", True
    ),
    "a lane's largest entry leaves a group out": Mutant(
        "cuda/warp.cuh", "for (int j = 1; j < kGroups; ++j)", "for (int j = 1; j < kGroups - 1; ++j)", "wrong"
    ),
    "a lane's largest entry leaves an entry out": Mutant(
        "cuda/warp.cuh",
        "for (int r = 0; r < kGroups * kGroup; ++r) max =",
        "for (int r = 1; r < kGroups * kGroup; ++r) max =",
        "wrong",
        thorough=True,
    ),
    "a lane's entries read again without its last group": Mutant(
        "cuda/top_k_top_p.cuh", "i < lanes * kGroups; i += kThreads", "i < lanes * kGroups - 1; i += kThreads", "wrong"
    ),
    "lanes found before all have been looked at": Mutant(
        "cuda/top_k_top_p.cuh",
        "put(atomicAdd(&s.count, 1), i, z);\n    }\n    __syncthreads();",
        "put(atomicAdd(&s.count, 1), i, z);\n    }",
        "race",
    ),
    "the launch before not waited for": Mutant(
        SMALL, "wait_for_launch();\n    if (beyond)", "if (beyond)", "race: it reads memory that", "verify_chain"
    ),
    "the launch before waited for behind the first look at what it left": Mutant(
        SMALL,
        "    wait_for_launch();\n    if (beyond) return;",
        "    if (at.makes_p && s.target.table.max[0] > 0) at.token = -1;\n    wait_for_launch();\n"
        "    if (beyond) return;",
        "race: it reads memory that the launch before wrote",
        "verify_chain",
        True,
    ),
    "a warp without a position does not wait": Mutant(
        SMALL, "wait_for_launch();  // warps that", "// warps that", "has not waited", "verify_chain"
    ),
    "a write before the launch before is waited for": Mutant(
        SMALL,
        "  find_given(s, b, shared.get());\n",
        "  find_given(s, b, shared.get());\n  if (leads && threadIdx.x == 0) a.status[b] = 0;\n",
        "race: it writes memory and has not waited",
        "verify_chain",
        True,
    ),
    "a stop read before the launch before is waited for": Mutant(
        VERIFY,
        "  wait_for_launch();\n  if (!ends)",
        "  const bool stops = s.stop[b] > 0;\n  wait_for_launch();\n  if (!ends || !stops)",
        "race: it reads memory that the launch before wrote",
        "verify_chain",
        True,
    ),
    "a cluster's barrier removed": Mutant(
        PAIR,
        "= table.sums[k][m];\n  }\n  cluster_sync();",
        "= table.sums[k][m];\n  }",
        "race|uninitialised|has exited",
        "kseq_rho",
    ),
    "what half of the warps found read before it is written": Mutant(
        "cuda/pair_sums.cuh",
        "found[which] = own;\n    __syncthreads();",
        "found[which] = own;",
        "race|uninitialised",
        "kseq_rho",
        True,
    ),
    "the sums of two turns in one place": Mutant(
        "cuda/gap_executor.cuh", "third_ + turn_ * chunks_", "third_", "race|wrong", "verify_chain", True
    ),
    "a block that skips its cluster's barrier": Mutant(
        PAIR,
        "if (size == 1) return;",
        "if (size == 1 || rank == 1) return;",
        "divergent|race|uninitialised|exited",
        "kseq_rho",
    ),
    "a write to a block that has ended": Mutant(
        SEARCH,
        "  if (cluster_rank() == 0 && threadIdx.x == 0) s.a.write(n, found);",
        "  if (cluster_rank() == 0 && threadIdx.x == 0) s.a.write(n, found);\n"
        "  if (cluster_size() > 1) *of_rank(shared + threadIdx.x, cluster_rank() ^ 1) = 0;",
        "race|has exited",
        "kseq_rho",
    ),
    "racers read too early": Mutant("cuda/race.cuh", "__syncthreads();\n    x =", "x =", "race|uninit", "verify_tree"),
    "rejection read before it is written": Mutant(
        WALK,
        "[bottom() + rest.n] = subtraction;\n    executor_.sync();",
        "[bottom() + rest.n] = subtraction;",
        "race|wrong|misaligned",  # what is there is not a row
        "verify_tree",
        True,
    ),
    "chunk sums read before they are written": Mutant(
        TEAM,
        "__stcg(sums + c, all);\n  });\n  cluster_sync();",
        "__stcg(sums + c, all);\n  });",
        "race",
        "verify_tree",
        True,
    ),
    "the row's own sums for what is left": Mutant(
        TEAM, "same && residual.n == 0 && ", "same && ", "wrong", "verify_tree", True
    ),
    "residual not normalised": Mutant(
        WALK, "subtraction.m = float(weight / total)", "subtraction.m = float(weight)", "wrong", "verify_tree", True
    ),
    "drawn tokens stay in q": Mutant(
        "ops/verify_tree/recursive.h", "kReplacement ? -1 : token", "-1", "wrong", "verify_tree", True
    ),
    "survivors not counted": Mutant("ops/verify_tree/kseq.h", "      ++k;", "      ;", "wrong", "verify_tree", True),
    "weight of the leaf alone": Mutant(
        "ops/verify_tree/traversal.h", "top_.w * x / q_t", "x / q_t", "wrong", "verify_tree", True
    ),
    "child's coin for the parent's": Mutant(
        "ops/verify_tree/target_only.h",
        "test_uniform * acc < seen",
        "walk.test_uniform(t.column) * acc < seen",
        "wrong",
        "verify_tree",
        True,
    ),
}
