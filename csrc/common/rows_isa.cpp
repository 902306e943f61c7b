// SPDX-License-Identifier: Apache-2.0
// Compiled once per instruction set (-DSPECDEC_ISA=avx512 ...), so it includes nothing with external linkage:
// an inline function shared with other files could carry this file's instructions to a CPU that lacks them.
#include "rows.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace specdec {
namespace {

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif
constexpr int U = kPad / W;  // vectors in a group of kPad lanes

using F = float __attribute__((vector_size(W * 4)));
using I = int32_t __attribute__((vector_size(W * 4)));
using H = uint16_t __attribute__((vector_size(W * 2)));
using F_u = float __attribute__((vector_size(W * 4), aligned(4)));
using H_u = uint16_t __attribute__((vector_size(W * 2), aligned(2)));

inline F load_f(const float* x) { return *reinterpret_cast<const F_u*>(x); }
inline void store_f(float* x, F v) { *reinterpret_cast<F_u*>(x) = v; }
inline F splat(float x) { return F{} + x; }
inline F select(I mask, F a, F b) { return mask ? a : b; }

inline F from_bf16(const uint16_t* x) {
  const I wide = __builtin_convertvector(*reinterpret_cast<const H_u*>(x), I);
  return (F)(wide << 16);
}

inline F from_fp16(const uint16_t* x) {
#if defined(__AVX512F__)
  return (F)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
#elif defined(__F16C__)
  return (F)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
#else
  const I h = __builtin_convertvector(*reinterpret_cast<const H_u*>(x), I);
  const I bits = (I)((F)((h & 0x7fff) << 13) * 0x1p112f) | (((h & 0x7c00) == 0x7c00) & 0x7f800000);
  return (F)(bits | (h & 0x8000) << 16);
#endif
}

// x where it is the larger, else m: a NaN x leaves m as it is.
inline F max_f(F x, F m) {
#if defined(__AVX512F__)
  return (F)_mm512_max_ps((__m512)x, (__m512)m);
#elif defined(__AVX2__)
  return (F)_mm256_max_ps((__m256)x, (__m256)m);
#else
  return select(x > m, x, m);
#endif
}

// x where it is the smaller, else m.
inline F min_f(F x, F m) {
#if defined(__AVX512F__)
  return (F)_mm512_min_ps((__m512)x, (__m512)m);
#elif defined(__AVX2__)
  return (F)_mm256_min_ps((__m256)x, (__m256)m);
#else
  return select(x < m, x, m);
#endif
}

// 2^f for |f| <= 1/2, relative error below 8e-8.
inline F exp2_poly(F f) {
  F r = splat(1.3276472454890609e-03f);
  r = r * f + 9.675540961325169e-03f;
  r = r * f + 5.550713092088699e-02f;
  r = r * f + 2.4022120237350464e-01f;
  r = r * f + 6.931469440460205e-01f;
  return r * f + 1.0f;
}

// 2^y. NaN stays NaN; y = -inf may give NaN too, so callers mask logits of -inf.
inline F exp2_f(F y) {
#if defined(__AVX512F__)
  const __m512 n = _mm512_roundscale_ps((__m512)y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  return (F)_mm512_scalef_ps((__m512)exp2_poly(y - (F)n), n);
#else
  y = select(y < -126.0f, splat(-126.0f), y);
  y = select(y > 127.0f, splat(127.0f), y);
  const F shifted = y + 0x1.8p23f;  // the low mantissa bits now hold round(y)
  const F power = (F)(((I)shifted << 23) + 0x3f800000);
  return exp2_poly(y - (shifted - 0x1.8p23f)) * power;
#endif
}

constexpr float kLog2e = 1.44269504088896341f;

// Four accumulators hide the latency of the adds; they and the lanes are combined in one fixed order.
constexpr int A = 4;
struct Sum {
  F lane[A] = {};
  float total() const {
    const F s = (lane[0] + lane[1]) + (lane[2] + lane[3]);
    float t = 0;
    for (int i = 0; i < W; ++i) t += s[i];
    return t;
  }
};

// f(vector index) for every vector of n lanes; the accumulator turns with the index.
template <class Step>
__attribute__((always_inline))
inline float sum_over(int n, Step step) {
  Sum s;
  const int vectors = padded(n) / W;
  int i = 0;
  for (; i + A <= vectors; i += A)
    for (int a = 0; a < A; ++a) s.lane[a] += step((i + a) * W);
  for (int a = 0; i < vectors; ++i, ++a) s.lane[a] += step(i * W);
  return s.total();
}

template <class Convert>
inline void widen(const uint16_t* x, int n, float* buf, Convert convert) {
  int i = 0;
  for (; i + W <= n; i += W) {
    __builtin_prefetch(x + i + kChunk);
    store_f(buf + i, convert(x + i));
  }
  if (i < n) {
    uint16_t tail[W] = {};
    for (int j = i; j < n; ++j) tail[j - i] = x[j];
    const F v = convert(tail);
    for (int j = i; j < n; ++j) buf[j] = v[j - i];
  }
}

const float* load(const Row& row, int64_t begin, int n, int total, float pad, float* buf) {
  if (row.dtype == kFloat32) {
    const float* x = static_cast<const float*>(row.data) + begin;
    if (n == padded(total)) return x;
    for (int i = 0; i < n; ++i) buf[i] = x[i];
  } else {
    const uint16_t* x = static_cast<const uint16_t*>(row.data) + begin;
    if (row.dtype == kBFloat16)
      widen(x, n, buf, from_bf16);
    else
      widen(x, n, buf, from_fp16);
  }
  for (int i = n; i < padded(total); ++i) buf[i] = pad;
  return buf;
}

Scan scan(const float* z, int n) {
  F max[U];
  I fine[U];
  for (int u = 0; u < U; ++u) max[u] = splat(-HUGE_VALF), fine[u] = I{} - 1;
  for (int i = 0; i < n; i += kPad)
    for (int u = 0; u < U; ++u) {
      const F x = load_f(z + i + u * W);
      max[u] = max_f(x, max[u]);
      fine[u] &= x < HUGE_VALF;
    }
  Scan out{-HUGE_VALF, false};
  for (int u = 0; u < U; ++u)
    for (int i = 0; i < W; ++i) {
      if (max[u][i] > out.max) out.max = max[u][i];
      out.bad |= !fine[u][i];
    }
  return out;
}

float max(const float* z, int n) {
  F m[A];
  for (int a = 0; a < A; ++a) m[a] = splat(-HUGE_VALF);
  const int vectors = padded(n) / W;
  int i = 0;
  for (; i + A <= vectors; i += A)
    for (int a = 0; a < A; ++a) m[a] = max_f(load_f(z + (i + a) * W), m[a]);
  for (; i < vectors; ++i) m[0] = max_f(load_f(z + i * W), m[0]);
  const F all = max_f(max_f(m[0], m[1]), max_f(m[2], m[3]));
  float out = all[0];
  for (int j = 1; j < W; ++j)
    if (all[j] > out) out = all[j];
  return out;
}

float exp_sum(const float* z, int n, float max, float scale, float cutoff) {
  const float a = scale * kLog2e;
  return sum_over(n, [=](int i) {
    __builtin_prefetch(z + i + kChunk);  // the row's next chunk, while this one keeps the arithmetic busy
    const F x = load_f(z + i);
    return select(x < cutoff, F{}, exp2_f((x - max) * a));  // so a NaN reaches the sum
  });
}

float probs(const float* z, int n, const Law& law, float* out) {
  const float a = law.scale * kLog2e, norm = __builtin_expf(-law.log_norm), max = law.max, cutoff = law.cutoff;
  return sum_over(n, [=](int i) {
    __builtin_prefetch(z + i + kChunk);
    const F x = load_f(z + i);
    const F p = select(x >= cutoff, exp2_f((x - max) * a) * norm, F{});
    store_f(out + i, p);
    return p;
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

inline F draft_f(F q) { return min_f(max_f(select(q <= 1.001f, q, F{}), F{}), splat(1.0f)); }

float draft(const float* q, int n, float* out) {
  return sum_over(n, [=](int i) {
    const F y = draft_f(load_f(q + i));
    store_f(out + i, y);
    return y;
  });
}

float subtract(float* w, const float* q, int n, float m, float s, float cap) {
  return sum_over(n, [=](int i) {
    const F x = load_f(w + i) * m;
    const F r = max_f(x - min_f(draft_f(load_f(q + i)), x * cap) * s, F{});
    store_f(w + i, r);
    return r;
  });
}

float scale(float* w, int n, float m) {
  return sum_over(n, [=](int i) {
    const F x = load_f(w + i) * m;
    store_f(w + i, x);
    return x;
  });
}

float mix(float* w, const float* q, const float* ruler, int n, float cut, float of_p, float kept, float gone) {
  return sum_over(n, [=](int i) {
    const F of_q = select(load_f(ruler + i) >= cut, splat(kept), splat(gone));
    const F r = max_f(load_f(w + i) * of_p + of_q * draft_f(load_f(q + i)), F{});
    store_f(w + i, r);
    return r;
  });
}

float cap(float* w, const float* q, int n, float of_q, float of_p, float m, float minus) {
  return sum_over(n, [=](int i) {
    const F x = load_f(w + i), y = draft_f(load_f(q + i));
    const F r = max_f(max_f(min_f(y, x * of_q), x * of_p) * m - y * minus, F{});
    store_f(w + i, r);
    return r;
  });
}

float deferred(const float* q, const float* ruler, int n, float cut) {
  return sum_over(n, [=](int i) { return select(load_f(ruler + i) >= cut, F{}, draft_f(load_f(q + i))); });
}

float entropy(const float* z, int n, const Law& law) {
  const float scale = law.scale, max = law.max, cutoff = law.cutoff;
  return sum_over(n, [=](int i) {
    const F z_i = load_f(z + i), x = max_f((z_i - max) * scale, splat(-100.0f));  // below it exp(x) is nothing, and x must be finite
    return select(z_i >= cutoff, exp2_f(x * kLog2e) * -x, F{});
  });
}

// ln x of a normal number, relative error below 1e-7 but around 1, where it is absolute.
inline F log_f(F x) {
  I exponent = ((I)x >> 23) - 127;
  F m = (F)(((I)x & 0x7fffff) | 0x3f800000);
  const I high = m > 1.41421356f;
  m = select(high, m * 0.5f, m);
  exponent -= high;  // true is -1
  const F s = (m - 1.0f) / (m + 1.0f), t = s * s;
  const F series = ((t * 0.11111111f + 0.14285714f) * t + 0.2f) * t + 0.33333333f;
  return __builtin_convertvector(exponent, F) * 0.69314718f + (s + s * t * series) * 2.0f;
}

float prob_entropy(const float* p, int n) {
  return sum_over(n, [=](int i) {
    const F x = load_f(p + i);
    return select((x >= 0x1p-126f) & (x < HUGE_VALF), -x * log_f(x), F{});
  });
}

int above(const float* z, int n, float least) {
  I count{};
  for (int i = 0; i < padded(n); i += W) count -= load_f(z + i) > least;
  int total = 0;
  for (int j = 0; j < W; ++j) total += count[j];
  return total;
}

using D = double __attribute__((vector_size(W * 4)));

// The lanes of x in float64: the lower half of them and the upper one.
inline D low(F x) {
#if defined(__AVX512F__)
  return (D)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)x));
#elif defined(__AVX2__)
  return (D)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)x));
#elif defined(__SSE2__)
  return (D)_mm_cvtps_pd((__m128)x);
#else
  return D{x[0], x[1]};
#endif
}
inline D high(F x) {
#if defined(__AVX512F__)
  return (D)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)x, 1));
#elif defined(__AVX2__)
  return (D)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)x, 1));
#elif defined(__SSE2__)
  return (D)_mm_cvtps_pd(_mm_movehl_ps((__m128)x, (__m128)x));
#else
  return D{x[2], x[3]};
#endif
}

inline double total(D x) {
  double t = 0;
  for (int i = 0; i < W / 2; ++i) t += x[i];
  return t;
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

// sum += (p - t q)+ of N vectors
#if defined(__AVX2__)
template <int N>
__attribute__((always_inline))
inline F under(const float* p, const float* q, F t) {
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
#else  // without an instruction that rounds p - t q once
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

void unders(const float* p, const float* q, int n, const float* t, double* out) {
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

int find(const float* z, int n, float lo, float hi, int* out) {
  int count = 0;
  for (int i = 0; i < n; i += kPad) {
    I any{};
    for (int u = 0; u < U; ++u) {
      const F x = load_f(z + i + u * W);
      any |= (x >= lo) & (x <= hi);
    }
    int hits = 0;
    for (int j = 0; j < W; ++j) hits |= any[j];
    if (!hits) continue;
    for (int j = i; j < i + kPad; ++j)
      if (z[j] >= lo && z[j] <= hi) out[count++] = j;
  }
  return count;
}

#define SPECDEC_STRING_(x) #x
#define SPECDEC_STRING(x) SPECDEC_STRING_(x)

}  // namespace

#define SPECDEC_TABLE_(isa) rows_##isa
#define SPECDEC_TABLE(isa) SPECDEC_TABLE_(isa)
extern const RowKernels SPECDEC_TABLE(SPECDEC_ISA);
const RowKernels SPECDEC_TABLE(SPECDEC_ISA) = {SPECDEC_STRING(SPECDEC_ISA), load, scan, max, exp_sum, probs, clean, draft, subtract, scale, mix, cap, deferred, entropy, prob_entropy, above, total, unders, find};

}  // namespace specdec
