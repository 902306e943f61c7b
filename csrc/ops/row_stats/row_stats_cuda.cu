// SPDX-License-Identifier: Apache-2.0
// The blocks of a row reduce its chunks, and the last of them to finish makes the row's stats.
#include "../../cuda/block_executor.cuh"
#include "../../cuda/list_entries.cuh"
#include "row_stats.h"

namespace specdec {
namespace {

struct RowStatsLaunch {
  LogitRows a;
  ChunkTable table;
  RowGrid grid;
};

template <bool kFiltered>
__global__ void __launch_bounds__(kThreads, kFiltered ? 2 : 4) scan(const RowStatsLaunch s) {
  const int64_t n = s.grid.row();
  if (!s.a.present.has(n)) {
    if (s.grid.part() == 0 && threadIdx.x == 0) s.a.stats[n] = RowStats{};
    return;
  }
  const Row row = s.a.logits.at(0, n);
  const Filters filters = s.a.sampling.at<kFiltered>(n);
  const ChunkTable table = s.table.row(n, chunk_count(row.V));
  reduce_chunks<kFiltered>(row, filters.scale(), s.grid.part(), s.grid.per_warp, table.under(filters, row.V));
  if (!s.grid.last()) return;
  const RowStats stats = block_stats<kFiltered>(row, filters, table);
  if (threadIdx.x == 0) s.a.stats[n] = stats;
}

// For rows with ids: `scan` makes stats of the rows as stored, and those of a greedy row then hold the index of an
// entry. This puts the id of the entry there. It is a launch of its own, since `scan` has no registers to spare.
__global__ void __launch_bounds__(kThreads) name_argmax(const LogitRows a) {
  const int64_t n = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (n < a.N && a.present.has(n)) a.stats[n] = stats_by_id(a.logits.ids.listed + n, a.stats[n]);
}

}  // namespace

void run(const LogitRows& a, const Tensor& like) {
  constexpr const char* kOp = "row_stats";
  const OnDeviceOf device(like);
  Scratch scratch;
  const RowGridRoom room(scratch, a.N, a.logits.V, a.sampling.filters());
  scratch.allocate(like);
  RowStatsLaunch s{a, {}, {}};
  SeenRows& rows = s.a.logits;
  const ViewsRoom views(like, rows, a.N);
  const EntriesRoom entries(like, rows.ids, rows.views, rows.V, a.N, kIdsEnd, false);
  SeenRows given = rows;  // list_entries reads these rows, and may write others for `scan` to read
  if (entries.written()) static_cast<RowMemory&>(rows) = entries.written(0);
  room.take(kOp, scratch, device.stream, s.grid, s.table);
  views.make(kOp, rows, a.N, device.stream);
  entries.make(kOp, given, a.N, views.lists(0), device.stream);
  if (a.sampling.filters())
    SPECDEC_LAUNCH(kOp, scan<true>, a.N * s.grid.blocks, device.stream, s);
  else
    SPECDEC_LAUNCH(kOp, scan<false>, a.N * s.grid.blocks, device.stream, s);
  if (rows.ids) SPECDEC_LAUNCH(kOp, name_argmax, (a.N + kThreads - 1) / kThreads, device.stream, s.a);
}

}  // namespace specdec
