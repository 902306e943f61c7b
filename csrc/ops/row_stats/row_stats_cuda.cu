// SPDX-License-Identifier: Apache-2.0
// The blocks of a row reduce its chunks; the last of them to finish makes its four floats.
#include <torch/csrc/stable/library.h>

#include "../../cuda/block_executor.cuh"
#include "../../cuda/list_entries.cuh"
#include "row_stats_op.h"

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
  RowStats stats = block_stats<kFiltered>(row, filters, table);
  if (s.a.logits.ids) stats = stats_by_id(s.a.logits.ids.listed + n, stats);
  if (threadIdx.x == 0) s.a.stats[n] = stats;
}

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
  room.take(kOp, scratch, device.stream, s.grid, s.table);
  views.make(kOp, rows, a.N, device.stream);
  entries.make(kOp, rows, a.N, views.lists(0), device.stream);
  if (a.sampling.filters())
    SPECDEC_LAUNCH(kOp, scan<true>, a.N * s.grid.blocks, device.stream, s);
  else
    SPECDEC_LAUNCH(kOp, scan<false>, a.N * s.grid.blocks, device.stream, s);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, SPECDEC_CUDA_KEY, m) {
  m.impl("row_stats", TORCH_BOX(&PlainRowStats<run>::call));
  m.impl("row_stats.views", TORCH_BOX(&row_stats_op<run>));
}

}  // namespace specdec
