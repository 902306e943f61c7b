// SPDX-License-Identifier: Apache-2.0
// Two launches. In `judge_rows`, blocks take parts of rows, early positions first. The last block of a position makes
// the stats of its rows and tests its draft. Once a request is known to stop, blocks of later positions exit before
// reading. In `finish_requests`, blocks sum the residual at each stop by chunks, and the last block of a request draws
// the final token. No block waits for another of its launch. Small batches take another path (small_batch.cuh). For
// requests that ask for a rule, or for block verification, `judge_rows` only makes the stats, and another launch walks
// them (requests_cuda.cu). A race has one launch of its own (race_cuda.cu).
#include "../../cuda/by_id.h"
#include "requests.cuh"
#include "small_batch.cuh"
#include "verify_chain.h"

namespace specdec {
namespace {

// Blocks that must fit an SM if there are no filters. On sm_100 reads by id need more than 64 registers.
constexpr int kResident = kReadsIds ? 3 : 4;

template <bool kFiltered>
__global__ void __launch_bounds__(kThreads, kFiltered ? 2 : kResident) judge_rows(const Step s) {
  let_next_begin();
  const VerifyChain& a = s.a;
  const int blocks = s.target.blocks + s.draft.blocks > 0 ? s.target.blocks + s.draft.blocks : 1;
  const int unit = int(blockIdx.x) / blocks, b = unit % int(a.B), i = unit / int(a.B);  // a grid has < 2^31 blocks
  const int number = int(blockIdx.x % blocks);
  if (!a.present.has(b)) {
    if (i == 0 && number == 0) put_absent(a, b, threadIdx.x, kThreads);
    return;
  }
  __shared__ Uninitialised<Part> shared;
  __shared__ Uninitialised<LookedUp> shared_test;
  Part& part = shared.get();
  LookedUp& at = shared_test.get();
  const bool known = threadIdx.x == 0 && a.G + 1 - atomicAdd(s.stop + b, 0) < i;
  const bool needless = known || ends_before(a, b, i, threadIdx.x, kThreads);
  if (threadIdx.x == kLanes && i <= a.drafted(b)) part.unit = unit, plan<kFiltered>(s, b, i, number, part);
  if (__syncthreads_or(needless)) return;
  if (part.row.V > 0) reduce_chunks<kFiltered>(part.row, part.scale, part.number, s.per_warp, part.table);
  if (!last_block(s.tested_blocks + part.unit, blocks)) return;
  if (threadIdx.x == kLanes && part.tests) {  // while the first warp adds up chunks
    at = look_at(s, part.start, part.b, part.i);
    look_up_token(a, part.b, part.i, at);
  }

#pragma unroll 1
  for (int which = 0; which < 2; ++which) {
    if (which == 0 ? part.reads[0] : part.reads[1])  // part.reads[which] would hold a register over the loop
      make_stats<kFiltered>(which == 0 ? a.target : a.draft, which == 0 ? s.target : s.draft, which, part);
  }
  if (!part.tests) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (at.makes_p) at.p = from_stats(at.p.row, part.laws[0]);
  if (at.makes_q) at.q = from_stats(at.q.row, part.laws[1]);
  if (at.q.row.is_listed()) at.z_q = at.q.entry(at.token);
  const DraftTest test = test_draft(at);
  if (test.accepted) {
    put_draft(a, part.b, part.i, at.token, float(at.log_prob(test.p)));
  } else {
    s.stops[part.unit] = test;
    atomicMax(s.stop + part.b, int(a.G + 1 - part.i));
  }
}

__global__ void __launch_bounds__(kThreads, 3) finish_requests(const Step s) {
  const VerifyChain& a = s.a;
  const int64_t b = blockIdx.x / s.residual_blocks;
  const bool ends = a.present.has(b) && !a.by_rule(b);
  __shared__ Uninitialised<DraftTest> shared_test;
  __shared__ Uninitialised<Ending> shared;
  DraftTest& test = shared_test.get();
  Ending& end = shared.get();
  if (ends) find_given(s, b, end);
  wait_for_launch();
  if (!ends) return;
  if (threadIdx.x == 0) {
    const int64_t i = a.G + 1 - s.stop[b], chunks = chunk_count(a.target.memory.V), start = a.start(b);
    float* const plain = s.target.stats ? s.target.table.row(a.target.index(start, b, i), chunks).sum : nullptr;
    test = s.stops[i * a.B + b];
    set_out(s, start, b, i, a.has_draft(b, i), a.gives_bonus(b, i), test, plain, end);
  }
  __syncthreads();
  finish_at(s, test, end);
}

// Reserves the stats and the chunk tables of one side's rows, if its stats have to be made.
class ReduceRoom {
 public:
  ReduceRoom(Scratch& scratch, const VerifyChain& a, const Rows& rows)
      : reduces_(rows.memory && rows.kind == Kind::kLogits && !rows.stats),
        rows_(!reduces_    ? 0
              : a.cu_draft ? a.D + a.B
                           : a.B * (a.G + 1)),
        stats_(scratch.ask<RowStats>(rows_)),
        table_(scratch, rows_, chunk_count(rows.memory.V), rows.sampling.filters()) {}

  // `keeps`: the stats are left for other launches.
  void take(const Scratch& scratch, int per_warp, bool keeps, Rows& rows, Reduced& reduced) const {
    if (!reduces_) return;
    reduced = {scratch.at<RowStats>(stats_), table_.in(scratch), blocks_per_row(chunk_count(rows.memory.V), per_warp)};
    if (keeps) rows.stats = reinterpret_cast<const float*>(reduced.stats), rows.stats_of_positions = true;
  }

 private:
  bool reduces_;
  int64_t rows_;
  size_t stats_;
  TableRoom table_;
};

}  // namespace

template <>
void launch_kernels<kReadsIds>(const VerifyChain& a, const Tensor& like) {
  const OnDeviceOf device(like);
  Step s;
  s.a = a;
  if (a.race) s.a.draft = unread(a.draft);
  const int64_t chunks = chunk_count(a.target.memory.V), positions = a.B * (a.G + 1);
  s.per_warp = chunks_per_warp(positions, chunks);
  const int64_t rows = a.cu_draft ? a.D + a.B : positions;
  const ViewsRoom views(like, s.a, rows, a.G);
  if (a.race) {
    const auto race = prepare_race(s.a, like, device.stream);
    views.make("verify_chain", s.a, positions, device.stream);
    return race();
  }
  Rows& of_draft = s.a.draft;
  const EntriesRoom entries(like, of_draft.ids, of_draft.views, of_draft.memory.V, rows, a.target.memory.V,
                            of_draft.kind == Kind::kProbs);
  if (entries.written()) of_draft.memory = entries.written(of_draft.per_request), of_draft.by_position = true;

  // All memory of a call is allocated before its first launch.
  const auto requests = a.by_rule() ? prepare_requests<kReadsIds>(a, like, device.stream) : nullptr;
  Scratch scratch;
  const size_t counters = scratch.ask<int>(positions + 2 * a.B), residual = scratch.ask<float>(a.B * chunks);
  const bool at_once = fits_at_once(a);
  const size_t stops = scratch.ask<DraftTest>(a.block || at_once ? 0 : positions);
  const size_t end_sums = scratch.ask<float>(at_once ? positions * chunks : 0);
  const ReduceRoom target(scratch, a, a.target), draft(scratch, a, a.draft);
  scratch.allocate(like);
  s.tested_blocks = scratch.at<int>(counters), s.stop = s.tested_blocks + positions, s.summed = s.stop + a.B;
  s.residual = scratch.at<float>(residual), s.stops = scratch.at<DraftTest>(stops);
  s.end_sums = scratch.at<float>(end_sums);
  target.take(scratch, s.per_warp, !at_once, s.a.target, s.target);
  draft.take(scratch, s.per_warp, !at_once, s.a.draft, s.draft);
  // If all drafts are one-hot and the target has no filters, p's own chunk sums are used, and one block sums again the
  // one chunk that q changes.
  const bool one_block = !a.draft.memory && s.target.stats && !a.target.sampling.filters();
  s.residual_per_warp = one_block ? turns(chunks, 1) : pair_chunks_per_warp(a.B, chunks);
  s.residual_blocks = blocks_per_row(chunks, s.residual_per_warp);
  const int64_t blocks = positions * std::max(1, s.target.blocks + s.draft.blocks);
  views.make("verify_chain", s.a, positions, device.stream);
  if constexpr (kReadsIds) {
    VerifyChain given = s.a;
    given.draft.memory = a.draft.memory, given.draft.by_position = a.draft.by_position;
    entries.make("verify_chain", given, positions, views.lists(1), device.stream);
  }
  if (at_once) return verify_at_once(s, blocks, device.stream);

  check_cuda("verify_chain",
             cudaMemsetAsync(s.tested_blocks, 0, size_t(positions + 2 * a.B) * sizeof(int), device.stream));
  if (a.target.sampling.filters() || a.draft.sampling.filters())
    SPECDEC_LAUNCH("verify_chain", judge_rows<true>, blocks, device.stream, s);
  else
    SPECDEC_LAUNCH("verify_chain", judge_rows<false>, blocks, device.stream, s);
  if (requests) requests(s.a);
  if (!a.block) SPECDEC_LAUNCH_DEPENDENT("verify_chain", finish_requests, a.B * s.residual_blocks, device.stream, s);
}

#ifndef SPECDEC_READS_IDS
void run(const VerifyChain& a, const Tensor& like) { launch_either(a, like); }
#endif

}  // namespace specdec
