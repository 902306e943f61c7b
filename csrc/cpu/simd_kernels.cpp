// SPDX-License-Identifier: Apache-2.0
// Compiled once per instruction set (-DSPECDEC_ISA=avx512 ...). So the functions here, and those in simd.h and the simd
// headers below, have no external linkage (simd_weights.h has an exception). The linker keeps one copy of an inline
// function that several files share; if it kept this file's, a CPU could run instructions that it lacks.
#include "simd_filters.h"
#include "simd_race.h"
#include "simd_weights.h"

namespace specdec {
namespace {

// Lane j of x if bit j is set, else -inf
inline F allowed(F x, uint32_t bits) {
#if defined(__AVX512F__)
  return (F)_mm512_mask_blend_ps(__mmask16(bits), (__m512)splat(-HUGE_VALF), (__m512)x);
#else
  Bits lane;
  for (int j = 0; j < W; ++j) lane[j] = 1u << j;
  return select((I)(((Bits{} + bits) & lane) != 0), x, splat(-HUGE_VALF));
#endif
}

// The largest lane of all accumulators m
inline float largest(const F (&m)[A]) {
  const F all = max_f(max_f(m[0], m[1]), max_f(m[2], m[3]));
  float out = all[0];
  for (int j = 1; j < W; ++j)
    if (all[j] > out) out = all[j];
  return out;
}

// Writes n entries as floats. If kMasked, those whose bit in `words` is not set become -inf. If kMax, returns the
// largest, NaN aside.
template <bool kMasked, bool kMax, class T, F (*kLoad)(const T*), bool kNext>
inline float copy_as(VectorsOf<T, kLoad, kNext> z, int n, const uint32_t* words, float* buf) {
  constexpr int kWord = 32, kLine = 64 / sizeof(T);  // entries of a word of the mask, and of a line of the cache
  F m[A];
  for (int a = 0; a < A; ++a) m[a] = splat(-HUGE_VALF);
  int i = 0;
  for (; i + kWord <= n; i += kWord) {
    const uint32_t word = kMasked ? words[i / kWord] : 0;
#pragma GCC unroll 8
    for (int j = 0; j < kWord; j += W) {
      if (j % kLine == 0) z.prefetch(i + j);
      const F v = kMasked ? allowed(z[i + j], word >> j) : z[i + j];
      store_f(buf + i + j, v);
      if (kMax) m[j / W % A] = max_f(v, m[j / W % A]);
    }
  }
  for (; i < n; i += W) {
    const int left = n - i < W ? n - i : W;
    T tail[W] = {};
    for (int j = 0; j < left; ++j) tail[j] = z.x[i + j];
    F v = kLoad(tail);
    if (kMasked) v = allowed(v, words[i / kWord] >> i % kWord);
    for (int j = 0; j < left; ++j) {
      buf[i + j] = v[j];
      if (kMax && v[j] > m[0][0]) m[0][0] = v[j];
    }
  }
  return kMax ? largest(m) : 0;
}

const float* load(const Entries& z, int n, int total, float pad, float* buf) {
  if (z.dtype == kFloat32 && n == padded(total)) return static_cast<const float*>(z.data);
  with_vectors(z, [=](auto z) { return copy_as<false, false>(z, n, nullptr, buf); });
  for (int i = n; i < padded(total); ++i) buf[i] = pad;
  return buf;
}

float copy(const Entries& z, int n, const uint32_t* words, float* buf) {
  const float max = with_vectors(z, [=](auto z) {
    return words ? copy_as<true, true>(z, n, words, buf) : copy_as<false, true>(z, n, words, buf);
  });
  for (int i = n; i < padded(n); ++i) buf[i] = -HUGE_VALF;
  return max;
}

float max(const Entries& entries, int n) {
  F m[A];
  for (int a = 0; a < A; ++a) m[a] = splat(-HUGE_VALF);
  with_vectors(entries, [&](auto z) {
    for_vectors(n, [&](int i, int a) __attribute__((always_inline)) { m[a] = max_f(z[i], m[a]); });
  });
  return largest(m);
}

float exp_sum(const Entries& entries, int n, float max, float scale, float cutoff) {
  const Exponent exponent(max, scale, cutoff);
  return with_vectors(entries, [=](auto z) {
    return sum_over(n, [=](int i) {
      z.prefetch(i);
      const F x = z[i];
      return select(x < exponent.least, F{}, exp2_f<true>(exponent(x)));  // false for NaN, so a NaN reaches the sum
    });
  });
}

constexpr float kLn2 = 0.69314718055994531f;
constexpr float kNothing = -200.0f;  // 2^y is 0 for this y. Lower y are raised to it: at -inf, y 2^y would be NaN

ExpSums exp_sums(const Entries& entries, int n, float max, float scale, float cutoff) {
  const Exponent exponent(max, scale, cutoff);
  Sum sum, surprises;
  with_vectors(entries, [&](auto z) {
    for_vectors(n, [&](int i, int lane) __attribute__((always_inline)) {
      z.prefetch(i);
      const F x = z[i], y = exponent(x), e = select(x < exponent.least, F{}, exp2_f<true>(y));
      sum.lane[lane] += e;
      surprises.lane[lane] += max_f(y, splat(kNothing)) * e;
    });
  });
  return {sum.total(), surprises.total() * -kLn2};
}

float probs(const Entries& entries, int n, const RowStats& stats, float* out) {
  const Exponent exponent(stats.max, stats.scale, stats.cutoff);
  const float norm = __builtin_expf(-stats.log_norm);
  return with_vectors(entries, [=](auto z) {
    return sum_over(n, [=](int i) {
      z.prefetch(i);
      const F x = z[i];
      const F p = select(x >= exponent.least, exp2_f(exponent(x)) * norm, F{});
      store_f(out + i, p);
      return p;
    });
  });
}

float clean(const float* z, int n, float* out) {
  return sum_over(n, [=](int i) {
    const F x = load_f(z + i);
    const F p = select((x > 0.0f) & (x < HUGE_VALF), x, F{});
    store_f(out + i, p);
    return p;
  });
}

float entropy(const float* z, int n, const RowStats& stats) {
  const Exponent exponent(stats.max, stats.scale, stats.cutoff);
  return -kLn2 * sum_over(n, [=](int i) {
    __builtin_prefetch(z + i + kChunk);
    const F x = load_f(z + i), y = exponent(x);
    return select(x >= exponent.least, exp2_f(y) * y, F{});
  });
}

GapSums gap(const float* z_p, const float* z_q, int n, const RowStats& stats_p, const RowStats& stats_q) {
  const Exponent exponent_p(stats_p.max, stats_p.scale, stats_p.cutoff),
      exponent_q(stats_q.max, stats_q.scale, stats_q.cutoff);
  const float norm_p = __builtin_expf(-stats_p.log_norm), norm_q = __builtin_expf(-stats_q.log_norm);
  Sum apart, shared, of_p, of_q;
  for_vectors(n, [&](int i, int lane) __attribute__((always_inline)) {
    __builtin_prefetch(z_p + i + kChunk);
    __builtin_prefetch(z_q + i + kChunk);
    const F x_p = load_f(z_p + i), y_p = max_f(exponent_p(x_p), splat(kNothing));
    const F x_q = load_f(z_q + i), y_q = max_f(exponent_q(x_q), splat(kNothing));
    const F p = select(x_p >= exponent_p.least, exp2_f(y_p) * norm_p, F{});
    const F q = select(x_q >= exponent_q.least, exp2_f(y_q) * norm_q, F{});
    const F both = min_f(p, q);
    apart.lane[lane] += p - both;
    shared.lane[lane] += both;
    of_p.lane[lane] += y_p * p;
    of_q.lane[lane] += y_q * q;
  });
  return {apart.total(), shared.total(), of_p.total() * -kLn2, of_q.total() * -kLn2};
}

float prob_entropy(const float* p, int n) {
  return sum_over(n, [=](int i) {
    const F x = load_f(p + i);
    return select((x >= 0x1p-126f) & (x < HUGE_VALF), -x * log_f(x), F{});
  });
}

double total(const float* p, int n) {
  D sum[2 * U] = {};
  for (int i = 0; i < n; i += kPad)
    for (int u = 0; u < U; ++u) {
      const F x = load_f(p + i + u * W);
      sum[2 * u] += low(x), sum[2 * u + 1] += high(x);
    }
  for (int u = 1; u < 2 * U; ++u) sum[0] += sum[u];
  return total(sum[0]);
}

// add_under(): sum += (p - t q)+ over N vectors
#if defined(__AVX2__)
template <int N>
__attribute__((always_inline)) inline F under(const float* p, const float* q, F t) {
  if constexpr (N > 1) return under<N / 2>(p, q, t) + under<N / 2>(p + N / 2 * W, q + N / 2 * W, t);
#if defined(__AVX512F__)
  return max_f((F)_mm512_fnmadd_ps((__m512)t, (__m512)load_f(q), (__m512)load_f(p)), F{});
#else
  return max_f((F)_mm256_fnmadd_ps((__m256)t, (__m256)load_f(q), (__m256)load_f(p)), F{});
#endif
}
template <int N>
inline void add_under(const float* p, const float* q, F t, D& sum) {
  const F x = under<N>(p, q, t);
  sum += low(x) + high(x);
}
#else  // in float64, which rounds p - t q only once
inline D above_0(D x) {
#if defined(__SSE2__)
  return (D)_mm_max_pd((__m128d)x, (__m128d)D{});
#else
  return x > 0.0 ? x : D{};
#endif
}
template <int N>
inline void add_under(const float* p, const float* q, F t, D& sum) {
  const D s = low(t);
  for (int a = 0; a < N; ++a) {
    const F x = load_f(p + a * W), y = load_f(q + a * W);
    sum += above_0(low(x) - s * low(y)) + above_0(high(x) - s * high(y));
  }
}
#endif

void clipped_sums(const float* p, const float* q, int n, const float* t, double* out) {
  F at[kCandidates];
  D sums[kCandidates] = {};
  for (int m = 0; m < kCandidates; ++m) at[m] = splat(t[m]);
  int i = 0;
#pragma GCC unroll 1
  for (; i + 8 * W <= padded(n); i += 8 * W)
    for (int m = 0; m < kCandidates; ++m) add_under<8>(p + i, q + i, at[m], sums[m]);
  for (; i < n; i += W)
    for (int m = 0; m < kCandidates; ++m) add_under<1>(p + i, q + i, at[m], sums[m]);
  for (int m = 0; m < kCandidates; ++m) out[m] = total(sums[m]);
}

#define SPECDEC_STRING_(x) #x
#define SPECDEC_STRING(x) SPECDEC_STRING_(x)

}  // namespace

#define SPECDEC_TABLE_(isa) rows_##isa
#define SPECDEC_TABLE(isa) SPECDEC_TABLE_(isa)
extern const RowKernels SPECDEC_TABLE(SPECDEC_ISA) = {SPECDEC_STRING(SPECDEC_ISA),
                                                      load,
                                                      copy,
                                                      chunk_max,
                                                      max,
                                                      exp_sum,
                                                      exp_sums,
                                                      probs,
                                                      clean,
                                                      draft,
                                                      subtract,
                                                      scale,
                                                      mix,
                                                      cap,
                                                      deferred,
                                                      entropy,
                                                      prob_entropy,
                                                      gap,
                                                      above,
                                                      reach,
                                                      total,
                                                      clipped_sums,
                                                      find,
                                                      spread,
                                                      racers,
                                                      kept_sums};

}  // namespace specdec
