// SPDX-License-Identifier: Apache-2.0
// The blocks of a row reduce its chunks, and the last of them to finish makes the draws. Draws from rows by id are in
// listed_draws_cuda.cu, races in race_cuda.cu.

#include "draws.cuh"
#include "sample.h"
#include "sample_race.cuh"

namespace specdec {
namespace {

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

std::function<void()> prepare_any_race(const Sample& a, const Tensor& like, cudaStream_t stream) {
  if constexpr (kReadsIds)  // on the simulated device one kernel reads rows with and without ids
    return prepare_race<true>(a, like, stream);
  else
    return a.logits.ids ? prepare_race<true>(a, like, stream) : prepare_race<false>(a, like, stream);
}

}  // namespace

void run(const Sample& a, const Tensor& like) {
  constexpr const char* kOp = "sample";
  const OnDeviceOf device(like);
  Scratch scratch;
  const RowGridRoom room(scratch, a.race ? 0 : a.N, a.logits.V, a.sampling.filters());
  scratch.allocate(like);
  Draws s{a, {}, {}};
  SeenRows& rows = s.a.logits;
  const ViewsRoom views(like, rows, a.N);
  const EntriesRoom entries(like, rows.ids, rows.views, rows.V, a.N, kIdsEnd, false);
  SeenRows given = rows;  // list_entries reads these rows, and may write others for the draws to read
  if (entries.written()) static_cast<RowMemory&>(rows) = entries.written(0);
  const std::function<void()> race = a.race ? prepare_any_race(s.a, like, device.stream) : nullptr;
  views.make(kOp, rows, a.N, device.stream);
  entries.make(kOp, given, a.N, views.lists(0), device.stream);
  if (race) return race();
  room.take(kOp, scratch, device.stream, s.grid, s.tables);
  const RowsIds ids = rows.ids;
  if (!ids || !a.stats_in) {
    if (ids) s.a.k = 0, rows.ids.listed = nullptr;  // only makes the stats of the rows as stored
    if (a.sampling.filters())
      SPECDEC_LAUNCH(kOp, draws<true>, a.N * s.grid.blocks, device.stream, s);
    else
      SPECDEC_LAUNCH(kOp, draws<false>, a.N * s.grid.blocks, device.stream, s);
    if (!ids) return;
    room.take(kOp, scratch, device.stream, s.grid, s.tables);
    s.a.k = a.k, rows.ids = ids;
  }
  launch_draws_by_id(s, device.stream);
}

}  // namespace specdec
