// SPDX-License-Identifier: Apache-2.0
// The stats of a row (four floats) from the statistics of its chunks, by one block. Only its first warp adds them up.
#pragma once

#include "chunk_reduce.cuh"
#include "top_k_top_p.cuh"

namespace specdec {

// The id of the largest finite entry, or 0 if there is none
SPECDEC_DEVICE int64_t block_argmax_finite(const Row& row) {
  float max = -HUGE_VALF;
  int best = INT32_MAX;
  for (int v = threadIdx.x; v < row.V; v += kThreads) {
    const float z = row.entry(v);
    if (z > max && z < HUGE_VALF) max = z, best = v;
  }
  const float top = block_max(max);
  const int id = block_min(max == top ? best : INT32_MAX);
  return id == INT32_MAX ? 0 : id;
}

// The stats of an invalid row. Rarely run, so not inlined.
SPECDEC_APART RowStats invalid_stats(Row row, float scale) {
  const float z = row.entry(block_argmax_finite(row));
  return {scale, -FLT_MAX, NAN, fabsf(z) < HUGE_VALF ? z + 0.0f : -HUGE_VALF};
}

// The statistics of a row, from those of its chunks
struct RowTotals {
  float max;
  bool bad;         // the sum of some chunk is NaN
  double total;     // of exp((z - max) * scale)
  float log_total;  // ln(total)
  int top;          // the first chunk with the maximum; greedy rows only
};

// The totals of a row. Called by one warp. If the row is valid and not greedy, and `sums` is not null, also writes the
// chunk sums of its distribution to `sums`.
SPECDEC_DEVICE RowTotals warp_totals(const ChunkTable& table, int chunks, float scale, float* sums) {
  const WarpRuns stats(chunks, [&](int c, bool inside) {
    return inside ? ChunkStats{__ldcg(table.max + c), __ldcg(table.sum + c)} : ChunkStats{-HUGE_VALF, 0};
  });
  RowTotals r{-HUGE_VALF, false, 0, 0, INT32_MAX};
  stats.each([&](int, const ChunkStats& x) { r.max = fmaxf(r.max, x.max), r.bad |= x.sum != x.sum; });
  r.max = warp_max(r.max) + 0.0f;  // -0 and +0 are the same logit; stats have +0
  r.bad = __any_sync(kFullWarp, r.bad);
  if (r.bad || r.max == -HUGE_VALF) return r;
  if (scale == HUGE_VALF) {
    stats.each([&](int c, const ChunkStats& x) { r.top = x.max == r.max && c < r.top ? c : r.top; });
    r.top = warp_reduce(r.top, [](int a, int b) { return a < b ? a : b; });
    return r;
  }
  const float rate = scale * kLog2E;
  const auto shares = stats.map([max = r.max, rate](const ChunkStats& x) {
    return x.sum > 0 ? x.sum * fast_exp2(scaled(x.max, max, rate)) : 0.0f;
  });
  shares.each([&](int, float share) { r.total += share; });
  r.total = warp_sum(r.total);
  const double log_total = log(r.total);
  r.log_total = float(log_total);
  if (!sums) return r;
  // norm = exp(-r.log_total) = exp(rounded) / total, where `rounded` is what rounding ln(total) to float took away. It
  // is so small that three terms of the series of exp are exact in double.
  const double rounded = log_total - r.log_total;
  const double norm = (1 + rounded * (1 + 0.5 * rounded)) / r.total;
  shares.each([&](int c, float share) {
    if (c < shares.end) __stcg(sums + c, float(share * norm));
  });
  return r;
}

// The stats of a row without filters, by one warp. Leaves the chunk sums of its distribution in `sums`, unless that is
// null. For an invalid row, `max` is the maximum of the chunks, while invalid_stats() gives the largest finite entry.
SPECDEC_DEVICE RowStats warp_stats(const Row& row, const Filters& filters, const ChunkTable& table, float* sums) {
  const float scale = filters.scale();
  const RowTotals r = warp_totals(table, int(chunk_count(row.V)), scale, sums);
  if (r.bad || !filters.sane() || r.max == -HUGE_VALF) return {scale, -FLT_MAX, NAN, r.max};
  if (!filters.greedy()) return {scale, -FLT_MAX, r.log_total, r.max};
  float z[kGroups * kGroup];
  load_groups<kGroups>(row, r.top, 0, -HUGE_VALF, z);
  int id = INT32_MAX;
#pragma unroll
  for (int k = kGroups * kGroup - 1; k >= 0; --k) id = z[k] == r.max ? int(id_of(r.top, 0, k)) : id;
  return {scale, r.max, float(warp_reduce(id, [](int a, int b) { return a < b ? a : b; })), r.max};
}

// Writes the totals of a row to shared memory. Called by one warp. Not inlined: kernels that stream rows have no
// registers to spare.
SPECDEC_APART void leave_totals(ChunkTable table, int chunks, float scale, float* sums, RowTotals* out) {
  const RowTotals found = warp_totals(table, chunks, scale, sums);
  if (threadIdx.x == 0) *out = found;
}

// warp_totals() for all threads of a block
SPECDEC_DEVICE RowTotals block_totals(const ChunkTable& table, int64_t V, float scale, float* sums) {
  __shared__ Uninitialised<RowTotals> shared;
  if (threadIdx.x < kLanes) leave_totals(table, int(chunk_count(V)), scale, sums, &shared.get());
  __syncthreads();
  const RowTotals r = shared.get();
  __syncthreads();
  return r;
}

// The first id of a chunk whose entry is `max`
SPECDEC_DEVICE int64_t block_argmax(const Row& row, int64_t chunk, float max) {
  // opaque: else a loop around this call keeps the thread's index in a register, which judge_rows lacks on sm_100
  const ThreadRun at{chunk * kChunk + int64_t(opaque(threadIdx.x)) * ThreadRun::kEntries};
  float z[ThreadRun::kEntries];
  at.load(row, -HUGE_VALF, z);
  int found = INT32_MAX;
#pragma unroll
  for (int r = ThreadRun::kEntries - 1; r >= 0; --r) found = z[r] == max ? int(at.id(r)) : found;
  return block_min(found);
}

// The chunk statistics of a row of logits without its removed ids; `ids` is as in chunk_stats_without().
SPECDEC_DEVICE void reduce_chunks_without(const Dist& q, const Few& removed, int part, int per_warp,
                                          const ChunkTable& table, const Listed* ids = nullptr) {
  for_chunks(chunk_count(q.row.V), part, per_warp, [&](int64_t c) {
    const ChunkStats stats = chunk_stats_without(q, removed, c, ids);
    if (threadIdx.x % kLanes == 0) __stcg(table.max + c, stats.max), __stcg(table.sum + c, stats.sum);
  });
}

// The stats of a row of logits without its removed ids. They are relative to the largest logit that is left, so nothing
// is lost, however little the rest weighs. log_norm is NaN if nothing is left. Leaves the chunk sums in `sums`.
SPECDEC_DEVICE RowStats block_stats_without(const Dist& q, const ChunkTable& table, float* sums) {
  const RowTotals r = block_totals(table, q.row.V, q.stats.scale, sums);
  return {q.stats.scale, q.stats.cutoff, r.max == -HUGE_VALF ? NAN : r.log_total, r.max};
}

// The stats of a row from its chunk statistics. Unless a filter is on, or the row is greedy or invalid, leaves the
// chunk sums of its distribution in `sums`, which may be table.sum.
template <bool kFiltered>
SPECDEC_DEVICE RowStats block_stats(const Row& row, const Filters& filters, const ChunkTable& table, float* sums) {
  const float scale = filters.scale();
  const bool filtered = kFiltered && filters.any(row.V);
  const RowTotals r = block_totals(table, row.V, scale, filtered ? nullptr : sums);
  if (r.bad || !filters.sane() || r.max == -HUGE_VALF) return invalid_stats(row, scale);
  if (filters.greedy()) return {scale, r.max, float(block_argmax(row, r.top, r.max)), r.max};
  if constexpr (kFiltered) {
    if (filtered) {
      const Nucleus::Kept kept = Nucleus(row, table.max, table.lanes, r.max, scale).emit(filters, r.total);
      return {scale, kept.cutoff + 0.0f, float(log(double(kept.mass) * Nucleus::kUnit)), r.max};
    }
  }
  return {scale, -FLT_MAX, r.log_total, r.max};
}

// The same, with table.sum as `sums`
template <bool kFiltered>
SPECDEC_DEVICE RowStats block_stats(const Row& row, const Filters& filters, const ChunkTable& table) {
  return block_stats<kFiltered>(row, filters, table, table.sum);
}

}  // namespace specdec
