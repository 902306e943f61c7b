// SPDX-License-Identifier: Apache-2.0
// What one warp does with one chunk of 1024 entries of a row: load it, reduce it, weigh it.
#pragma once

#include <cuda_runtime.h>

#include "../core/residual.h"

#define SPECDEC_DEVICE __device__ __forceinline__

namespace specdec {

constexpr unsigned kFullWarp = 0xffffffffu;
constexpr int kLanes = 32;
constexpr float kLog2E = 1.4426950408889634f;

// exp2 on the special function unit: 2 ulp, and 0 below kLeastExponent.
SPECDEC_DEVICE float fast_exp2(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return x < kLeastExponent ? 0.0f : exp2f(x);
#endif
}

SPECDEC_DEVICE float half_to_float(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(uint16_t(bits)));
  return f;
#else
  const uint16_t h = uint16_t(bits);
  return load_scalar(Row{&h, 1, kFloat16}, 0);
#endif
}

// Hides where a pointer comes from: the compiler would otherwise keep an address for every entry of a chunk from turn
// to turn, and spill.
template <class T>
SPECDEC_DEVICE const T* opaque(const T* p) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+l"(p));
#endif
  return p;
}

SPECDEC_DEVICE float warp_max(float x) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, step));
  return x;
}

SPECDEC_DEVICE float warp_sum(float x) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(kFullWarp, x, step);
  return x;
}

// A lane holds groups of eight neighbouring ids; group j of lane l begins here in its chunk, whatever the dtype and the
// alignment of the row: the order of every sum, and so its bits, are the same for all.
constexpr int kGroup = 8;
SPECDEC_DEVICE int group_begin(int j) { return (j * kLanes + int(threadIdx.x) % kLanes) * kGroup; }
SPECDEC_DEVICE int64_t id_of(int64_t chunk, int first, int r) {
  return chunk * kChunk + group_begin(first + r / kGroup) + r % kGroup;
}

// load_groups() of the last chunk, and of rows that do not start at a multiple of 16 bytes: entry by entry, eight under
// way at a time
template <int N>
SPECDEC_DEVICE void load_entries(const Row& row, const char* at, int64_t chunk, int first, float pad,
                                 float (&z)[N * kGroup]) {
  const int64_t rest = row.V - chunk * kChunk - group_begin(first);
  const int left =
      rest < kChunk ? int(rest) : kChunk;  // entries from this lane's first one to the end of the row, or enough
  if (row.dtype == kFloat32) {
    const float* from = opaque(reinterpret_cast<const float*>(at) + group_begin(first));
#pragma unroll
    for (int r = 0; r < N * kGroup; ++r) {
      const int step = r / kGroup * (kLanes * kGroup) + r % kGroup;
      z[r] = step < left ? __ldg(from + step) : pad;
    }
    return;
  }
  const bool brain = row.dtype == kBFloat16;
  const uint16_t pad_bits = pad == 0 ? 0 : brain ? 0xff80 : 0xfc00;
  const uint16_t* from = opaque(reinterpret_cast<const uint16_t*>(at) + group_begin(first));
#pragma unroll
  for (int j = 0; j < N; ++j) {
    uint32_t bits[kGroup];
#pragma unroll
    for (int e = 0; e < kGroup; ++e)
      bits[e] = j * (kLanes * kGroup) + e < left ? __ldg(from + j * (kLanes * kGroup) + e) : pad_bits;
#pragma unroll
    for (int e = 0; e < kGroup; ++e)
      z[j * kGroup + e] = brain ? __uint_as_float(bits[e] << 16) : half_to_float(bits[e]);
  }
}

// Groups first .. first + N - 1 of a chunk as floats, `pad` (0 or -inf) beyond the row: 16-byte loads, all under way
// before one is used.
template <int N>
SPECDEC_DEVICE void load_groups(const Row& row, int64_t chunk, int first, float pad, float (&z)[N * kGroup]) {
  const int64_t begin = chunk * kChunk;
  const char* at = static_cast<const char*>(row.data) + begin * (row.dtype == kFloat32 ? 4 : 2);
  if (row.V - begin >= kChunk && reinterpret_cast<uintptr_t>(at) % 16 == 0) {
    if (row.dtype == kFloat32) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const uint4* from = reinterpret_cast<const uint4*>(at + 4 * group_begin(first + j));
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const uint4 x = __ldg(from + h);
          float* to = z + j * kGroup + 4 * h;
          to[0] = __uint_as_float(x.x), to[1] = __uint_as_float(x.y), to[2] = __uint_as_float(x.z),
          to[3] = __uint_as_float(x.w);
        }
      }
      return;
    }
    uint4 raw[N];
#pragma unroll
    for (int j = 0; j < N; ++j) raw[j] = __ldg(reinterpret_cast<const uint4*>(at + 2 * group_begin(first + j)));
    if (row.dtype == kBFloat16) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const uint32_t words[4] = {raw[j].x, raw[j].y, raw[j].z, raw[j].w};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          z[j * kGroup + 2 * w] = __uint_as_float(words[w] << 16);
          z[j * kGroup + 2 * w + 1] = __uint_as_float(words[w] & 0xffff0000u);
        }
      }
      return;
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const uint32_t words[4] = {raw[j].x, raw[j].y, raw[j].z, raw[j].w};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        z[j * kGroup + 2 * w] = half_to_float(words[w] & 0xffffu);
        z[j * kGroup + 2 * w + 1] = half_to_float(words[w] >> 16);
      }
    }
    return;
  }
  load_entries<N>(row, at, chunk, first, pad, z);
}

struct ChunkStats {
  float max;  // over everything but NaN
  float sum;  // of exp((z - max) * scale); NaN if the chunk holds NaN or +inf; not needed of a greedy row, else 0
};

// `sample` [32] or null: an entry per lane, from all over the chunk.
SPECDEC_DEVICE ChunkStats chunk_stats(const Row& row, int64_t chunk, float scale, float* sample) {
  constexpr int N = kChunk / kLanes;
  float z[N];
  load_groups<N / kGroup>(row, chunk, 0, -HUGE_VALF, z);
  if (sample) {
    const int lane = threadIdx.x % kLanes, j = lane % 4;
    __stcg(sample + lane, j < 2 ? (j == 0 ? z[0] : z[kGroup]) : (j == 2 ? z[2 * kGroup] : z[3 * kGroup]));
  }
  float max = -HUGE_VALF;
#pragma unroll
  for (int r = 0; r < N; ++r) max = fmaxf(max, z[r]);
  max = warp_max(max);
  float sum[4] = {0, 0, 0, 0};
  if (scale == HUGE_VALF || max == -HUGE_VALF) {
#pragma unroll
    for (int r = 0; r < N; ++r) sum[r % 4] += z[r] <= FLT_MAX ? 0.0f : NAN;
  } else {
    const float rate = scale * kLog2E;
#pragma unroll
    for (int r = 0; r < N; ++r) sum[r % 4] += fast_exp2(scaled(z[r], max, rate));
  }
  return {max, warp_sum((sum[0] + sum[1]) + (sum[2] + sum[3]))};
}

// Of the entries that a law keeps, without ids that were taken out. Group by group, so that few registers are held.
SPECDEC_DEVICE ChunkStats chunk_stats_without(const Dist& q, const Removed& removed, int64_t chunk) {
  const float rate = q.stats.scale * kLog2E, cutoff = q.stats.cutoff;
  float max = -HUGE_VALF, sum = 0;
#pragma unroll 1
  for (int first = 0; first < kChunk / kLanes / kGroup; ++first) {
    float z[kGroup];
    load_groups<1>(q.row, chunk, first, -HUGE_VALF, z);
#pragma unroll 1
    for (int64_t i = 0; i < removed.n; ++i) {
      const int64_t at = removed[i] - id_of(chunk, first, 0);
#pragma unroll
      for (int r = 0; r < kGroup; ++r) {
        if (at == r) z[r] = -HUGE_VALF;
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

// p(v) of a dist that has a row, from the entry of that row; NaN of a probability that is none
SPECDEC_DEVICE float target_weight(const Dist& p, float z) {
  if (p.kind == Kind::kProbs) return clean_prob(z);
  return z >= p.stats.cutoff ? fast_exp2(scaled(z, p.stats.max, p.stats.scale * kLog2E) - p.stats.log_norm * kLog2E)
                             : 0.0f;
}

// q(v) to be taken away: what is not a probability counts as none, and a rounded one as one.
SPECDEC_DEVICE float draft_weight(const Dist& q, float z) {
  const float w = q.kind == Kind::kProbs ? z : target_weight(q, z);
  return w > 0 && w <= 1.0f + 1e-3f ? fminf(w, 1.0f) : 0.0f;
}

SPECDEC_DEVICE float pad_of(const Dist& d) { return d.kind == Kind::kProbs ? 0.0f : -HUGE_VALF; }

SPECDEC_DEVICE bool has_row(const Dist& d) { return d.kind == Kind::kLogits || d.kind == Kind::kProbs; }

// (p - q)+ at one id; p has a row.
SPECDEC_DEVICE float weight_at(const Dist& p, const Dist& q, int64_t v) {
  const float w = target_weight(p, load_scalar(p.row, v));
  if (q.kind == Kind::kNothing) return w;
  if (q.kind == Kind::kOneHot) return v == q.hot ? w - w : w;  // NaN stays
  if (v >= q.row.V) return w;
  return Compare<float>::positive(w - draft_weight(q, load_scalar(q.row, v)));
}

// (p - q)+ of two groups of a chunk; 0 beyond the row. p has a row.
constexpr int kPairs = 2;
SPECDEC_DEVICE void weigh_groups(const Dist& p, const Dist& q, int64_t chunk, int first, float (&w)[kPairs * kGroup]) {
  constexpr int N = kPairs * kGroup;
  float y[N];
  load_groups<kPairs>(p.row, chunk, first, pad_of(p), w);
  const bool minus_row = has_row(q) && chunk * kChunk < q.row.V;
  if (minus_row) load_groups<kPairs>(q.row, chunk, first, pad_of(q), y);
#pragma unroll
  for (int r = 0; r < N; ++r) w[r] = target_weight(p, w[r]);
  if (minus_row) {
#pragma unroll
    for (int r = 0; r < N; ++r) w[r] = Compare<float>::positive(w[r] - draft_weight(q, y[r]));
  } else if (q.kind == Kind::kOneHot) {
#pragma unroll
    for (int r = 0; r < N; ++r) {
      if (chunk * kChunk + group_begin(first + r / kGroup) + r % kGroup == q.hot) w[r] -= w[r];  // NaN stays
    }
  }
}

// Sum of (p - q)+ over one chunk; NaN if p is a probability row with NaN or inf there.
SPECDEC_DEVICE float chunk_sum(const Dist& p, const Dist& q, int64_t chunk) {
  float sum[2] = {0, 0};
#pragma unroll 1
  for (int first = 0; first < kChunk / kLanes / kGroup; first += kPairs) {
    float w[kPairs * kGroup];
    weigh_groups(p, q, chunk, first, w);
#pragma unroll
    for (int r = 0; r < kPairs * kGroup; ++r) sum[r % 2] += w[r];
  }
  return warp_sum(sum[0] + sum[1]);
}

// out [V] = (p - q)+ * factor over one chunk
SPECDEC_DEVICE void write_chunk(const Dist& p, const Dist& q, int64_t chunk, double factor, float* out) {
#pragma unroll 1
  for (int first = 0; first < kChunk / kLanes / kGroup; first += kPairs) {
    float w[kPairs * kGroup];
    weigh_groups(p, q, chunk, first, w);
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int64_t v = chunk * kChunk + group_begin(first + j);
      float x[kGroup];
#pragma unroll
      for (int e = 0; e < kGroup; ++e) x[e] = float(w[j * kGroup + e] * factor);
      if (v + kGroup <= p.row.V && reinterpret_cast<uintptr_t>(out + v) % 16 == 0) {
        reinterpret_cast<float4*>(out + v)[0] = make_float4(x[0], x[1], x[2], x[3]);
        reinterpret_cast<float4*>(out + v)[1] = make_float4(x[4], x[5], x[6], x[7]);
      } else {
#pragma unroll
        for (int e = 0; e < kGroup; ++e) {
          if (v + e < p.row.V) out[v + e] = x[e];
        }
      }
    }
  }
}

}  // namespace specdec
