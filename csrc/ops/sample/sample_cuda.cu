// SPDX-License-Identifier: Apache-2.0
// Warps reduce chunks of a row, wherever they run; the last block of a row to be done walks through its draws.
#include <torch/csrc/stable/library.h>

#include "../../cuda/block_executor.cuh"
#include "sample_op.h"

namespace specdec {
namespace {

class SampleExecutor : public BlockExecutor {
 public:
  SPECDEC_DEVICE SampleExecutor(const RowStats& stats, const ChunkTable& table, bool has_max, Held held)
      : BlockExecutor(stats, table.sum, has_max ? table.max : nullptr, held), table_(table) {}

  // The last id taken leaves the sums of p: its chunk is summed again rather than subtracted from, since what is left
  // of it may be far smaller than what was taken. Returns p as it is to be drawn from next; nothing where nothing is
  // left.
  SPECDEC_DEVICE Dist exclude(const Dist& p, const Removed& removed) {
    removed_ = removed;
    __syncthreads();
    const int64_t chunk = removed[removed.n - 1] / kChunk, first = chunk * kChunk;
    const double rest =
        block_sum<double>(chunk_size(p.row.V, chunk), [&](int i) { return double(weight(p, Dist{}, first + i)); });
    if (leads()) __stcg(sum_ + chunk, float(rest));
    __syncthreads();
    const double total = block_sum_of(p.row.V, sum_);
    if (total >= kEnough) return p;
    Dist left = p;
    left.stats = block_stats_without(p, removed, table_);
    return left.valid() ? left : Dist{};
  }

 private:
  const ChunkTable table_;
};

struct Draws {
  Sample a;
  ChunkTable table;
  RowGrid grid;
};

template <bool kFiltered>
__global__ void __launch_bounds__(kThreads, kFiltered ? 2 : 3) draws(const Draws s) {
  const int64_t n = s.grid.row();
  if (!s.a.present.has(n)) {
    if (s.grid.part() == 0) put_absent(s.a, n, threadIdx.x, kThreads);
    return;
  }
  const Row row = s.a.logits.at(0, n);
  const Filters filters = s.a.sampling[n];
  const ChunkTable table = s.table.row(n, chunk_count(row.V));
  Dist q;
  if (s.a.stats_in) q = from_stats(row, stats_at(s.a.stats_in, n));
  if (q.kind == Kind::kLogits)
    sum_chunks(q, Dist{}, s.grid.part(), s.grid.per_warp, nullptr, table.sum);
  else if (!s.a.stats_in)
    reduce_chunks<kFiltered>(row, filters.scale(), s.grid.part(), s.grid.per_warp, table.under(filters, row.V));
  if (!s.grid.last()) return;

  RowStats stats{};
  if (!s.a.stats_in) stats = block_stats<kFiltered>(row, filters, table);
  const bool held = s.a.stats_in || !filters.any(row.V);
  SampleExecutor executor(stats, table, !s.a.stats_in, held ? BlockExecutor::kPlain : BlockExecutor::kNothingHeld);
  sample(executor, s.a, n);
}

void run(const Sample& a, const Tensor& like) {
  constexpr const char* kOp = "sample";
  const OnDeviceOf device(like);
  Scratch scratch;
  const RowGridRoom room(scratch, a.N, a.logits.V, a.sampling.filters());
  scratch.allocate(like);
  Draws s{a, {}, {}};
  room.take(kOp, scratch, device.stream, s.grid, s.table);
  if (a.sampling.filters())
    SPECDEC_LAUNCH(kOp, draws<true>, a.N * s.grid.blocks, device.stream, s);
  else
    SPECDEC_LAUNCH(kOp, draws<false>, a.N * s.grid.blocks, device.stream, s);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, SPECDEC_CUDA_KEY, m) { m.impl("sample", TORCH_BOX(&sample_op<run>)); }

}  // namespace specdec
