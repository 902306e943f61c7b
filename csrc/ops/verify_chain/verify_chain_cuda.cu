// SPDX-License-Identifier: Apache-2.0
// Two launches. `judge_rows`: blocks take parts of rows, first positions first; the last block of a position makes its
// laws and judges its draft, and a stop keeps the blocks of later positions that have not begun from reading.
// `finish_requests`: chunk sums of the residual at each stop as it was found, whose last block draws the final token.
// No block ever waits for another. Requests that ask for a rule, or for block verification, only have their laws made
// by the first launch, and are then walked by one of their own.
#include <torch/csrc/stable/library.h>

#include "../../cuda/block_executor.cuh"
#include "position.h"
#include "requests.cuh"
#include "test_draft.h"
#include "verify_chain_op.h"

namespace specdec {
namespace {

// The chunk statistics and laws of one side's rows, where the caller did not hand its laws over.
struct Reduced {
  RowStats* stats = nullptr;  // [positions]
  ChunkTable table;
  int blocks = 0;  // per row
};

struct Step {
  VerifyChain a;  // the stats of a scanned side point to its laws
  Reduced target, draft;
  float* residual = nullptr;     // [B, chunks]: chunk sums at the stop
  int* stop = nullptr;           // [B]: G + 1 less the first position known to stop; 0: none yet
  DraftTest* stops = nullptr;    // [G+1, B]: what was found at positions that stop
  int* tested_blocks = nullptr;  // [B, G+1]: blocks done with a position
  int* summed = nullptr;         // [B]: blocks done with the chunk sums
  int per_warp = 1, residual_per_warp = 1, residual_blocks = 1;
};

SPECDEC_DEVICE bool greedy_target(const Step& s, int64_t b, int64_t i) {
  if (s.target.stats) return s.a.target.sampling[b].greedy();
  const Side& target = s.a.target;
  const int64_t start = s.a.start(b);
  return target.stats && target.has_row(start, b, i) && target.known_stats(start, b, i).scale == HUGE_VALF;
}

// What a block does at a position: one thread finds it out, and it lies in shared memory, since the pass over the rows
// has no register to spare for it.
struct Part {
  int unit, b, i;
  int64_t start;
  bool reads[2];  // the rows of the target and of the draft are to be read
  bool tests;
  Row row;  // of this block; no entry where it reads none
  float scale;
  ChunkTable table;
  int number;      // which part of the row
  double uniform;  // of the test
};

template <bool kFiltered>
SPECDEC_DEVICE void make_stats(const Side& side, const Reduced& reduced, const Part& part) {
  const int64_t b = part.b, index = side.index(part.start, b, part.i), chunks = chunk_count(side.rows.V);
  const RowStats stats = block_stats<kFiltered>(side.at(part.start, b, part.i), side.sampling.at<kFiltered>(b),
                                                reduced.table.row(index, chunks));
  if (threadIdx.x == 0) reduced.stats[index] = stats;
}

template <bool kFiltered>
SPECDEC_DEVICE void take(const Side& side, const Reduced& reduced, int64_t b, int64_t i, int number, Part& part) {
  const Filters filters = side.sampling.at<kFiltered>(b);
  const int64_t V = side.rows.V, chunks = chunk_count(V);
  part.row = side.at(part.start, b, i);
  part.scale = filters.scale();
  part.table = reduced.table.row(side.index(part.start, b, i), chunks).under(filters, V);
  part.number = number;
}

// What the test of a draft will look up, one after another, once the rows are done
SPECDEC_DEVICE void prefetch_test(const VerifyChain& a, int64_t start, int64_t b, int64_t i) {
  if (a.uniforms)
    prefetch(a.uniforms + b * (a.G + 1) + i);
  else if (a.seed)
    prefetch(a.seed.address(b)), prefetch(a.offset.address(b));
  const Side& q = a.draft;
  const int64_t d = a.draft_token(b, i);
  if (q.is_one_hot(start, b, i) || !q.has_row(start, b, i) || d >= q.rows.V) return;
  prefetch(q.at(start, b, i).at(d));
  if (q.stats && !q.stats_of_positions) prefetch(q.stats + 4 * q.number(start, b, i));
}

template <bool kFiltered>
SPECDEC_DEVICE void plan(const Step& s, int64_t b, int64_t i, int number, Part& part) {
  const VerifyChain& a = s.a;
  part.b = int(b), part.i = int(i);
  const int64_t start = part.start = a.start(b);
  part.tests = !a.by_rule(b);
  part.row.V = 0;
  part.reads[0] = s.target.stats && !a.gives_bonus(b, i) && a.target.has_row(start, b, i);
  part.reads[1] = s.draft.stats && (part.tests ? a.has_draft(b, i) && !greedy_target(s, b, i) : reads_draft(a, b, i)) &&
                  a.draft.has_row(start, b, i);
  if (number == 0 && part.tests && a.has_draft(b, i)) prefetch_test(a, start, b, i);
  const bool of_draft = number >= s.target.blocks;
  if (!part.reads[of_draft]) return;
  if (of_draft)
    take<kFiltered>(a.draft, s.draft, b, i, number - s.target.blocks, part);
  else
    take<kFiltered>(a.target, s.target, b, i, number, part);
}

template <bool kFiltered>
__global__ void __launch_bounds__(kThreads, kFiltered ? 2 : 4) judge_rows(const Step s) {
  const VerifyChain& a = s.a;
  const int blocks = s.target.blocks + s.draft.blocks > 0 ? s.target.blocks + s.draft.blocks : 1;
  const int unit = int(blockIdx.x) / blocks, b = unit % int(a.B), i = unit / int(a.B);  // a grid has less than 2^31
  const int number = int(blockIdx.x % blocks);
  if (!a.present.has(b)) {
    if (i == 0 && number == 0) put_absent(a, b, threadIdx.x, kThreads);
    return;
  }
  const int64_t g = a.drafted(b);
  __shared__ Uninitialised<Part> shared;
  Part& part = shared.get();
  bool needless = i > g || (threadIdx.x == 0 && a.G + 1 - atomicAdd(s.stop + b, 0) < i);
  for (int64_t j = threadIdx.x; j < i && j < g; j += kThreads) needless |= !a.has_draft(b, j);
  if (threadIdx.x == 0 && !needless) part.unit = unit, plan<kFiltered>(s, b, i, number, part);
  if (__syncthreads_or(needless)) return;
  if (part.row.V > 0) reduce_chunks<kFiltered>(part.row, part.scale, part.number, s.per_warp, part.table);
  const auto find_uniform = [&] {
    if (part.tests) part.uniform = a.accept_uniform(part.b, part.i);
  };
  if (!last_block(s.tested_blocks + part.unit, blocks, find_uniform)) return;

#pragma unroll 1
  for (int which = 0; which < 2; ++which) {
    if (part.reads[which])
      make_stats<kFiltered>(which == 0 ? a.target : a.draft, which == 0 ? s.target : s.draft, part);
  }
  if (!part.tests || threadIdx.x != 0) return;
  NoExecutor executor;
  const DraftTest test = test_draft(executor, a, part.b, part.i, [&] { return part.uniform; });
  if (test.accepted) {
    emit_draft(a, part.b, part.i, test.p);
  } else {
    s.stops[part.unit] = test;
    atomicMax(s.stop + part.b, int(a.G + 1 - part.i));
  }
}

// What a block of finish_requests goes by, in shared memory as a Part is
struct Ending {
  int64_t b, i;
  DraftTest test;
  float* sums;          // of chunks of what the token is drawn from
  const float* maxima;  // of chunks of p's row, or null
  bool summed;          // the sums are there: judge_rows made the row's law, and no filter took anything away
  int part;
  double uniform;
};

SPECDEC_DEVICE void look_up(const Step& s, int64_t b, Ending& end) {
  const Side& target = s.a.target;
  const int64_t V = target.rows.V, chunks = chunk_count(V), i = s.a.G + 1 - s.stop[b];
  end.b = b, end.i = i;
  end.part = int(blockIdx.x % s.residual_blocks);
  end.test = s.stops[i * s.a.B + b];
  end.sums = s.residual + b * chunks, end.maxima = nullptr, end.summed = false;
  if (!s.target.stats) return;
  const ChunkTable own = s.target.table.row(target.index(s.a.start(b), b, i), chunks);
  end.maxima = own.max;
  end.summed = end.test.q.kind == Kind::kNothing && !target.sampling[b].any(V);
  if (end.summed) end.sums = own.sum;
}

__global__ void __launch_bounds__(kThreads, 3) finish_requests(const Step s) {
  const VerifyChain& a = s.a;
  const int64_t request = blockIdx.x / s.residual_blocks;
  if (!a.present.has(request) || a.by_rule(request)) return;
  __shared__ Uninitialised<Ending> shared;
  Ending& end = shared.get();
  if (threadIdx.x == 0) look_up(s, request, end);
  __syncthreads();
  const auto find_uniform = [&] { end.uniform = a.final_uniform(end.b); };
  if (!end.test.p.valid() || !has_row(end.test.p) || end.summed) {
    if (end.part > 0) return;
    if (threadIdx.x == 0) find_uniform();
    __syncthreads();
  } else {
    sum_chunks(end.test.p, end.test.q, end.part, s.residual_per_warp, end.maxima, end.sums);
    if (!last_block(s.summed + end.b, s.residual_blocks, find_uniform)) return;
  }
  forget();
  const bool plain = end.test.q.kind == Kind::kNothing;
  BlockExecutor executor(RowStats{}, end.sums, end.maxima, plain ? BlockExecutor::kPlain : BlockExecutor::kPair);
  finish(executor, a, end.b, end.i, end.test, [&] { return end.uniform; });
}

// Room for the laws and the chunks of a side's rows, if its laws have to be made.
class ReduceRoom {
 public:
  ReduceRoom(Scratch& scratch, const VerifyChain& a, const Side& side)
      : reduces_(side.rows && side.kind == Kind::kLogits && !side.stats),
        rows_(!reduces_    ? 0
              : a.cu_draft ? a.D + a.B
                           : a.B * (a.G + 1)),
        stats_(scratch.ask<RowStats>(rows_)),
        table_(scratch, rows_, chunk_count(side.rows.V), side.sampling.filters()) {}

  void take(const Scratch& scratch, int per_warp, Side& side, Reduced& reduced) const {
    if (!reduces_) return;
    reduced = {scratch.at<RowStats>(stats_), table_.in(scratch), blocks_per_row(chunk_count(side.rows.V), per_warp)};
    side.stats = reinterpret_cast<const float*>(reduced.stats), side.stats_of_positions = true;
  }

 private:
  bool reduces_;
  int64_t rows_;
  size_t stats_;
  TableRoom table_;
};

void run(const VerifyChain& a, const Tensor& like) {
  const OnDeviceOf device(like);
  Step s{a};
  const int64_t chunks = chunk_count(a.target.rows.V), positions = a.B * (a.G + 1);
  s.per_warp = chunks_per_warp(positions, chunks);
  s.residual_per_warp = chunks_per_warp(a.B, chunks);
  s.residual_blocks = blocks_per_row(chunks, s.residual_per_warp);

  Scratch scratch;
  const size_t counters = scratch.ask<int>(positions + 2 * a.B), residual = scratch.ask<float>(a.B * chunks);
  const size_t stops = scratch.ask<DraftTest>(a.block ? 0 : positions);
  const ReduceRoom target(scratch, a, a.target), draft(scratch, a, a.draft);
  scratch.allocate(like);
  s.tested_blocks = scratch.at<int>(counters), s.stop = s.tested_blocks + positions, s.summed = s.stop + a.B;
  s.residual = scratch.at<float>(residual), s.stops = scratch.at<DraftTest>(stops);
  target.take(scratch, s.per_warp, s.a.target, s.target);
  draft.take(scratch, s.per_warp, s.a.draft, s.draft);

  check_cuda("verify_chain",
             cudaMemsetAsync(s.tested_blocks, 0, size_t(positions + 2 * a.B) * sizeof(int), device.stream));
  const int64_t blocks = positions * std::max(1, s.target.blocks + s.draft.blocks);
  if (a.target.sampling.filters() || a.draft.sampling.filters())
    SPECDEC_LAUNCH("verify_chain", judge_rows<true>, blocks, device.stream, s);
  else
    SPECDEC_LAUNCH("verify_chain", judge_rows<false>, blocks, device.stream, s);
  if (a.by_rule()) run_requests(s.a, like, device.stream);
  if (!a.block) SPECDEC_LAUNCH("verify_chain", finish_requests, a.B * s.residual_blocks, device.stream, s);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, SPECDEC_CUDA_KEY, m) {
  m.impl("verify_chain", TORCH_BOX(&VerifyChainOp<run>::call));
  m.impl("verify_chain.out", TORCH_BOX(&VerifyChainOp<run>::out));
}

}  // namespace specdec
