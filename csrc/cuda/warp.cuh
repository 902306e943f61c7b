// SPDX-License-Identifier: Apache-2.0
// The statistics of one chunk of logits, computed by one warp: the maximum, and the sum of exp((z - max) * scale).
#pragma once

#include "../core/residual.h"
#include "groups.cuh"

namespace specdec {

constexpr float kLog2E = 1.4426950408889634f;

// exp2 on the special function unit. Its error is at most 2 ulp, and below kLeastExponent it returns 0.
SPECDEC_DEVICE float fast_exp2(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return x < kLeastExponent ? 0.0f : exp2f(x);
#endif
}

// Reduces one value per lane to one value, which every lane gets.
template <class T, class Join>
SPECDEC_DEVICE T warp_reduce(T x, const Join& join) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) x = join(x, __shfl_xor_sync(kFullWarp, x, step));
  return x;
}
SPECDEC_DEVICE float warp_max(float x) {
  return warp_reduce(x, [](float a, float b) { return fmaxf(a, b); });
}
template <class T>
SPECDEC_DEVICE T warp_sum(T x) {
  return warp_reduce(x, [](T a, T b) { return a + b; });
}

struct ChunkStats {
  float max;  // NaN is ignored
  float sum;  // of exp((z - max) * scale); NaN if the chunk holds NaN or +inf; otherwise 0 if the row is greedy
};

// The maxima of the low halves and of the high halves of two words. Each half is a 16-bit float. NaN is ignored.
template <DType kType>
SPECDEC_DEVICE uint32_t packed_max(uint32_t x, uint32_t y) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (kType == kBFloat16)
    asm("max.bf16x2 %0, %0, %1;" : "+r"(x) : "r"(y));
  else
    asm("max.f16x2 %0, %0, %1;" : "+r"(x) : "r"(y));
  return x;
#else
  const Group<kType> a{{x}}, b{{y}};
  const uint32_t low = a[0] < b[0] || a[0] != a[0] ? y : x, high = a[1] < b[1] || a[1] != a[1] ? y : x;
  return (low & 0xffffu) | (high & 0xffff0000u);
#endif
}

// The largest entry of a lane; NaN is ignored.
template <DType kType>
SPECDEC_DEVICE float lane_max(const Group<kType> (&groups)[kGroups]) {
  float max = -HUGE_VALF;
  if constexpr (kType == kFloat32) {
#pragma unroll
    for (int r = 0; r < kGroups * kGroup; ++r) max = fmaxf(max, groups[r / kGroup][r % kGroup]);
  } else {
    Group<kType> most = groups[0];  // four chains of maxima, one per word
#pragma unroll
    for (int j = 1; j < kGroups; ++j) {
#pragma unroll
      for (int w = 0; w < kGroup / 2; ++w) most.words[w] = packed_max<kType>(most.words[w], groups[j].words[w]);
    }
    const uint32_t left = packed_max<kType>(most.words[0], most.words[1]);
    most.words[0] = packed_max<kType>(left, packed_max<kType>(most.words[2], most.words[3]));
    max = fmaxf(fmaxf(max, most[0]), most[1]);
  }
  return max;
}

// Where a pass over a row stores one entry per lane of each chunk, for the filters: the lane's largest entry (NaN is
// ignored), or the first entry of its group lane % 4. To see whether there is room, test `room` itself. Do not set a
// pointer into it to null on a condition and test that: ptxas 13.0 reads such a pointer too early
// (tools/machine_code/hazards.py).
struct LaneEntries {
  float* room = nullptr;  // [chunks, 32] of the row, or null
  int chunk = 0;
  bool largest = false;  // whether the lane's largest entry is stored
};

template <DType kType>
SPECDEC_DEVICE ChunkStats chunk_stats(const Group<kType> (&groups)[kGroups], float scale, const LaneEntries& entries) {
  const float largest = lane_max<kType>(groups);
  if (entries.room) {
    const int lane = threadIdx.x % kLanes, j = lane % 4;
    const float low = j == 0 ? groups[0][0] : groups[1][0], high = j == 2 ? groups[2][0] : groups[3][0];
    __stcg(entries.room + entries.chunk * kLanes + lane, entries.largest ? largest : j < 2 ? low : high);
  }
  const float max = warp_max(largest);
  float sum[4] = {0, 0, 0, 0};
  if (scale == HUGE_VALF || max == -HUGE_VALF) {
#pragma unroll
    for (int r = 0; r < kGroups * kGroup; ++r) sum[r % 4] += groups[r / kGroup][r % kGroup] <= FLT_MAX ? 0.0f : NAN;
  } else {
    const float rate = scale * kLog2E;
#pragma unroll
    for (int r = 0; r < kGroups * kGroup; ++r)
      sum[r % 4] += fast_exp2(scaled(groups[r / kGroup][r % kGroup], max, rate));
  }
  return {max, warp_sum((sum[0] + sum[1]) + (sum[2] + sum[3]))};
}

// The statistics of one of the first whole_chunks() chunks (groups.cuh)
template <DType kType>
SPECDEC_DEVICE ChunkStats whole_chunk_stats(const Row& row, int64_t chunk, float scale, const LaneEntries& entries) {
  Group<kType> groups[kGroups];
  const char* at = group_at<kType>(row, chunk, 0);
#pragma unroll
  for (int j = 0; j < kGroups; ++j) groups[j].load(at + j * Group<kType>::kStep);
  return chunk_stats<kType>(groups, scale, entries);
}

// The statistics of any chunk
SPECDEC_DEVICE ChunkStats chunk_stats(const Row& row, int64_t chunk, float scale, const LaneEntries& entries) {
  float z[kGroups * kGroup];
  load_groups<kGroups>(row, chunk, 0, -HUGE_VALF, z);
  Group<kFloat32> groups[kGroups];
#pragma unroll
  for (int r = 0; r < kGroups * kGroup; ++r) groups[r / kGroup].words[r % kGroup] = __float_as_uint(z[r]);
  return chunk_stats<kFloat32>(groups, scale, entries);
}

// The statistics of the entries that q keeps, without the removed ids. Works group by group, to need few registers.
// `ids` is given if q.row is read by the places of its entries in memory; it then holds the ids of these entries. It is
// null if entry v of q.row is that of id v.
SPECDEC_DEVICE ChunkStats chunk_stats_without(const Dist& q, const Few& removed, int64_t chunk, const Listed* ids) {
  const float rate = q.stats.scale * kLog2E, cutoff = q.stats.cutoff;
  float max = -HUGE_VALF, sum = 0;
#pragma unroll 1
  for (int first = 0; first < kGroups; ++first) {
    float z[kGroup];
    const GroupsOf<1> group{chunk, first};
    if (q.row.is_listed())
      load_listed(q.row.listed(), q.stats, group, z);
    else
      group.load(q.row, -HUGE_VALF, z);
#pragma unroll 1
    for (int64_t i = 0; i < removed.n; ++i) {
      const int64_t at = number_in(q.row, removed[i]) - group.id(0);
#pragma unroll
      for (int r = 0; r < kGroup; ++r) {
        if (ids ? ids->is_at(removed[i], group.id(r)) : at == r) z[r] = -HUGE_VALF;
      }
    }
    float larger = max;
#pragma unroll
    for (int r = 0; r < kGroup; ++r) larger = z[r] >= cutoff ? fmaxf(larger, z[r]) : larger;
    if (larger == -HUGE_VALF) continue;
    if (max > -HUGE_VALF) sum *= fast_exp2(scaled(max, larger, rate));
    max = larger;
#pragma unroll
    for (int r = 0; r < kGroup; ++r) sum += z[r] >= cutoff ? fast_exp2(scaled(z[r], max, rate)) : 0.0f;
  }
  const float most = warp_max(max);
  return {most, warp_sum(max > -HUGE_VALF ? sum * fast_exp2(scaled(max, most, rate)) : 0.0f)};
}

}  // namespace specdec
