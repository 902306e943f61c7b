// SPDX-License-Identifier: Apache-2.0
// The blocks of a row find the maxima of its chunks. For the rank of each given token they also count the logits that
// are at least as large. The last of them to finish picks the best ids.
#include "../../cuda/best_ids.cuh"
#include "../../cuda/chunk_reduce.cuh"
#include "../../cuda/views.cuh"
#include "top_logprobs.h"

namespace specdec {
namespace {

struct TopLaunch {
  TopLogprobs a;
  ChunkTable table;
  RowGrid grid;
};

SPECDEC_DEVICE void read_chunk(const TopLogprobs& a, const Row& row, int64_t n, int64_t c, float* chunk_max) {
  constexpr int N = kChunk / kLanes;
  float z[N];
  load_groups<N / kGroup>(row, c, 0, -HUGE_VALF, z);
  float max = -HUGE_VALF;
#pragma unroll
  for (int r = 0; r < N; ++r) max = fmaxf(max, z[r]);
  max = warp_max(max);
  const bool leads = threadIdx.x % kLanes == 0;
  if (leads) __stcg(chunk_max + c, max);
#pragma unroll 1
  for (int64_t j = 0; j < a.m; ++j) {
    const float least = a.token_logit(row, n, j);
    int count = 0;
#pragma unroll
    for (int r = 0; r < N; ++r) count += z[r] >= least;
    count = int(warp_sum(float(count)));
    if (least == -HUGE_VALF) count -= kChunk - chunk_size(row.V, c);  // without the padding after the row
    if (leads && count)
      atomicAdd(reinterpret_cast<unsigned long long*>(a.token_ranks + n * a.m + j), (unsigned long long)count);
  }
}

__global__ void __launch_bounds__(kThreads, 2) pick_best(const TopLaunch s) {
  const TopLogprobs& a = s.a;
  const int64_t n = s.grid.row();
  if (!a.present.has(n)) {
    const int64_t width = a.k > a.m ? a.k : a.m;
    for (int64_t i = threadIdx.x; i < width && s.grid.part() == 0; i += kThreads) a.put_nothing(n, i);
    return;
  }
  const Row row = a.logits.at(0, n);
  float* chunk_max = s.table.row(n, chunk_count(row.V)).max;
  for_chunks(chunk_count(row.V), s.grid.part(), s.grid.per_warp,
             [&](int64_t c) { read_chunk(a, row, n, c, chunk_max); });
  if (!s.grid.last()) return;
  const Dist p = a.dist(n);
  for (int64_t j = threadIdx.x; j < a.m; j += kThreads) a.put_token(p, n, j);
  BestIds(row, chunk_max, ByLogit()).each(a.k, [&](int64_t i, uint64_t order) { a.put(p, n, i, order); });
}

}  // namespace

void run(const TopLogprobs& a, const Tensor& like) {
  constexpr const char* kOp = "top_logprobs";
  const OnDeviceOf device(like);
  Scratch scratch;
  const RowGridRoom room(scratch, a.N, a.logits.V, false);
  scratch.allocate(like);
  TopLaunch s{a, {}, {}};
  const ViewsRoom views(like, s.a.logits, a.N);
  room.take(kOp, scratch, device.stream, s.grid, s.table);
  views.make(kOp, s.a.logits, a.N, device.stream);
  if (a.m > 0) check_cuda(kOp, cudaMemsetAsync(a.token_ranks, 0, size_t(a.N * a.m) * sizeof(int64_t), device.stream));
  SPECDEC_LAUNCH(kOp, pick_best, a.N * s.grid.blocks, device.stream, s);
}

}  // namespace specdec
