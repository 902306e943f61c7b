// SPDX-License-Identifier: Apache-2.0
// The blocks of a row reduce its chunks; the last of them to finish makes the draws.
#include <torch/csrc/stable/library.h>

#include "../../cuda/block_executor.cuh"
#include "../../cuda/views.cuh"
#include "sample_op.h"

namespace specdec {
namespace {

struct Draws {
  Sample a;
  ChunkTable tables;
  RowGrid grid;

  SPECDEC_DEVICE ChunkTable table(int64_t n) const { return tables.row(n, chunk_count(a.logits.V)); }
};

// The stats of a row of logits without its removed ids. Rarely run, so not inlined.
SPECDEC_APART RowStats stats_of_rest(Row row, RowStats stats, Few removed, ChunkTable table) {
  Dist p;
  p.kind = Kind::kLogits, p.row = row, p.stats = stats;
  reduce_chunks_without(p, removed, 0, turns(chunk_count(row.V), 1), table);
  __syncthreads();
  return block_stats_without(p, table, table.sum);
}

// A BlockExecutor that draws repeatedly from one row. exclude() takes the last drawn id out of its sums.
class SampleExecutor : public BlockExecutor {
 public:
  SPECDEC_DEVICE SampleExecutor(const Draws& s, int64_t n, const RowStats& stats, Held held)
      : BlockExecutor(stats, s.table(n).sum, s.a.stats_in ? nullptr : s.table(n).max, held), s_(s), n_(n) {}

  // Adds the chunk sums up again: over many draws no register is free to keep what sum() found.
  SPECDEC_DEVICE int64_t draw(const Dist& p, const Dist& q, double v) const {
    return block_draw(block_choose(p.row.V, v, sum_),
                      [&](const ThreadRun& at, auto& w, const auto& meanwhile) { weigh_left(p, q, at, w, meanwhile); });
  }

  // Removes the last drawn id from the sums of p. Its chunk is summed again, since what is left of it may be far
  // smaller than what was removed. Returns the distribution of the next draw, of kind kNothing if nothing is left.
  SPECDEC_DEVICE Dist exclude(const Dist& p, const Few& removed) {
    removed_ = removed;
    __syncthreads();
    const int64_t chunk = removed[removed.n - 1] / kChunk;
    float w[ThreadRun::kEntries];
    weigh_left(p, Dist{}, thread_run(chunk), w, [] {});
    double own = 0;
    for (const float x : w) own += x;
    const double rest = block_scan(own).total;
    if (leads()) __stcg(sum_ + chunk, float(rest));
    __syncthreads();
    const double total = block_sum_of(p.row.V, sum_);
    if (total >= kEnough) return p;
    Dist left = p;
    left.stats = stats_of_rest(p.row, p.stats, removed, s_.table(n_));
    return left.valid() ? left : Dist{};
  }

 private:
  // The weights without the ids that were drawn before
  template <class Meanwhile>
  SPECDEC_DEVICE void weigh_left(const Dist& p, const Dist& q, const ThreadRun& at, float (&w)[ThreadRun::kEntries],
                                 const Meanwhile& meanwhile) const {
    weigh(p, q, at, w, meanwhile);
#pragma unroll 1
    for (int64_t i = 0; i < removed_.n; ++i) {
      const int64_t gone = removed_[i] - at.first;
#pragma unroll
      for (int r = 0; r < ThreadRun::kEntries; ++r) w[r] = gone == r ? 0.0f : w[r];
    }
  }

  const Draws& s_;
  const int64_t n_;
  Few removed_;
};

// Blocks that must fit an SM. On sm_100 and newer the walk over draws needs about 90 registers, and must not spill.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kResident = 2;
#else
constexpr int kResident = 3;
#endif

template <bool kFiltered>
__global__ void __launch_bounds__(kThreads, kFiltered ? 2 : kResident) draws(const Draws s) {
  const int64_t n = s.grid.row();
  if (!s.a.present.has(n)) {
    if (s.grid.part() == 0) put_absent(s.a, n, threadIdx.x, kThreads);
    return;
  }
  const Row row = s.a.logits.at(0, n);
  const Filters filters = s.a.sampling.at<kFiltered>(n);
  Dist q;
  if (s.a.stats_in) q = from_stats(row, stats_at(s.a.stats_in, n));
  if (q.kind == Kind::kLogits)
    sum_chunks(q, Dist{}, NoSpecialChunks{}, s.grid.part(), s.grid.per_warp, nullptr, s.table(n).sum);
  else if (!s.a.stats_in)
    reduce_chunks<kFiltered>(row, filters.scale(), s.grid.part(), s.grid.per_warp, s.table(n).under(filters, row.V));
  if (!s.grid.last()) return;

  RowStats stats{};
  if (!s.a.stats_in) stats = block_stats<kFiltered>(row, filters, s.table(n));
  const bool held = s.a.stats_in || !filters.any(row.V);
  SampleExecutor executor(s, n, stats, held ? BlockExecutor::kPlain : BlockExecutor::kNothingHeld);
  sample(executor, s.a, n);
}

void run(const Sample& a, const Tensor& like) {
  constexpr const char* kOp = "sample";
  const OnDeviceOf device(like);
  Scratch scratch;
  const RowGridRoom room(scratch, a.N, a.logits.V, a.sampling.filters());
  scratch.allocate(like);
  Draws s{a, {}, {}};
  const ViewsRoom views(like, s.a.logits, a.N);
  room.take(kOp, scratch, device.stream, s.grid, s.tables);
  views.make(kOp, s.a.logits, a.N, device.stream);
  if (a.sampling.filters())
    SPECDEC_LAUNCH(kOp, draws<true>, a.N * s.grid.blocks, device.stream, s);
  else
    SPECDEC_LAUNCH(kOp, draws<false>, a.N * s.grid.blocks, device.stream, s);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, SPECDEC_CUDA_KEY, m) {
  m.impl("sample", TORCH_BOX(&PlainSample<run>::call));
  m.impl("sample.views", TORCH_BOX(&sample_op<run>));
}

}  // namespace specdec
