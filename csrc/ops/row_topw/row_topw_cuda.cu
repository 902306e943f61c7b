// SPDX-License-Identifier: Apache-2.0
// The blocks of a row reduce its chunks. The last of them to finish makes the row's stats, unless they are given, and
// searches the few chunks that can hold one of the best ids.
#include "../../cuda/best_ids.cuh"
#include "../../cuda/block_executor.cuh"
#include "../../cuda/views.cuh"
#include "row_topw.h"

namespace specdec {
namespace {

struct TopWLaunch {
  RowTopW a;
  ChunkTable table;
  RowGrid grid;
};

__global__ void __launch_bounds__(kThreads, 2) extend_beams(const TopWLaunch s) {
  const RowTopW& a = s.a;
  const int64_t n = s.grid.row();
  if (!a.present.has(n)) {
    for (int64_t i = threadIdx.x; i < a.w && s.grid.part() == 0; i += kThreads) a.put_nothing(n, i);
    return;
  }
  const Row row = a.logits.at(0, n);
  const ChunkTable table = s.table.row(n, chunk_count(row.V));
  reduce_chunks<false>(row, 1.0f, s.grid.part(), s.grid.per_warp, table);
  if (!s.grid.last()) return;
  const Extension worth = a.extension(n, a.stats ? RowStats{} : block_stats<false>(row, Filters{}, table));
  if (worth.flat()) {
    for (int64_t i = threadIdx.x; i < a.w; i += kThreads) a.put(n, i, worth.flat_order(i));
    return;
  }
  BestIds(row, table.max, worth).each(a.w, [&](int64_t i, uint64_t order) { a.put(n, i, order); });
}

}  // namespace

void run(const RowTopW& a, const Tensor& like) {
  constexpr const char* kOp = "row_topw";
  const OnDeviceOf device(like);
  Scratch scratch;
  const RowGridRoom room(scratch, a.N, a.logits.V, false);
  scratch.allocate(like);
  TopWLaunch s{a, {}, {}};
  const ViewsRoom views(like, s.a.logits, a.N);
  room.take(kOp, scratch, device.stream, s.grid, s.table);
  views.make(kOp, s.a.logits, a.N, device.stream);
  SPECDEC_LAUNCH(kOp, extend_beams, a.N * s.grid.blocks, device.stream, s);
}

}  // namespace specdec
