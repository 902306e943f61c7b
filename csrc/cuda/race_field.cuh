// SPDX-License-Identifier: Apache-2.0
// The ids of a row in the race (core/race.h), as the lanes of a block try them. The key of an id, its log-weight plus
// noise, takes two logarithms in float64. So a test in float32 rules out almost all ids first. Noise is -ln(-ln u), and
// noise of t or more needs 1 - u <= exp(-t). So an id with log-weight w needs 1 - u <= exp(w - bar) for a key that
// reaches `bar`. The bar is ln(sum of exp(w)) - 3: on average at most e^3 = 20 ids pass the test. With a probability of
// about exp(-e^3) = 2e-9 no key reaches the bar. Then all ids are tried.
#pragma once

#include "../core/race.h"
#include "thread_block.cuh"
#include "weights.cuh"

namespace specdec {

// log2 on the special function unit. A subnormal x counts as 0.
SPECDEC_DEVICE float fast_log2(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return log2f(x);
#endif
}

// The product of two words, in one instruction. With the operator, ptxas 13.0 adds 0 to its upper half.
SPECDEC_DEVICE uint64_t wide_product(uint32_t x, uint32_t y) {
#if defined(__CUDA_ARCH__)
  uint64_t product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(x), "r"(y));
  return product;
#else
  return uint64_t{x} * y;
#endif
}

constexpr float kBelowSum = 3 * kLog2E;  // how far a bar lies below the sum's log2
constexpr float kNoBar = -FLT_MAX;       // every kept entry reaches it

// The ids of one row in a race. A lane takes the ids of its GroupsOf. In a row by id, the groups consist of places in
// Listed::places instead, and the entries of one id add up at its first place. Bars are in log2 here.
class Field {
 public:
  SPECDEC_DEVICE Field(const Dist& d, const Noise& noise)
      : d_(d),
        noise_(noise),
        half_max_(0.5f * d.stats.max),
        rate_(2 * (d.stats.scale * kLog2E)),
        probs_(d.kind == Kind::kProbs) {}

  SPECDEC_DEVICE int64_t chunks() const { return chunk_count(is_listed() ? d_.row.listed()->n : d_.row.V); }
  // The chunk that holds an id
  SPECDEC_DEVICE int chunk_of(int64_t id) const {
    return int((is_listed() ? first_place(*d_.row.listed(), int(id)) : id) / kChunk);
  }
  // Bit r: whether entry r of this lane in chunk c is one of this id
  SPECDEC_DEVICE uint32_t bit_of(int c, int64_t id) const {
    uint32_t bit = 0;
#pragma unroll 1
    for (int r = 0; r < kGroups * kGroup; ++r) bit |= uint32_t(id_at(id_of(c, 0, r)) == id) << r;
    return bit;
  }
  // The bar of the whole row. If the given stats make rate_ overflow, there is no bar, and all entries are tried.
  SPECDEC_DEVICE float bar() const {
    return !(rate_ <= FLT_MAX) ? kNoBar : (probs_ ? 0 : d_.stats.log_norm * kLog2E) - kBelowSum;
  }
  // The bar of chunk c without the entries that are gone: bit r of `gone` stands for entry r of this lane. The whole
  // warp calls it.
  SPECDEC_DEVICE float bar_of(int c, uint32_t gone) const {
    float most = -HUGE_VALF, sum = 0;
    for_groups(c, gone, 0, [&](const float (&x)[kGroup]) {
#pragma unroll
      for (int e = 0; e < kGroup; ++e) most = fmaxf(most, x[e]);
    });
    most = warp_max(most);
    if (most == -HUGE_VALF || !(rate_ <= FLT_MAX)) return kNoBar;
    for_groups(c, gone, most, [&](const float (&x)[kGroup]) {
#pragma unroll
      for (int e = 0; e < kGroup; ++e) sum += fast_exp2(x[e]);
    });
    return most + fast_log2(warp_sum(sum)) - kBelowSum;
  }
  // Whether the racer's key is NaN or at least the bar, which is in log2. True if there is no bar.
  SPECDEC_DEVICE static bool reaches(const Racer& racer, float bar) {
    return bar == kNoBar || !(racer.key < double(bar) * 0.6931471805599453);
  }

  // Updates `best` with this lane's entries of chunks first, first + kWarps, ... below `end`. Entries whose key reaches
  // the bar are always tried, others sometimes. `gone` is as in bar_of(), and 0 if there are several chunks. The loads
  // of a group are issued one turn of the loop ahead.
  SPECDEC_DEVICE void race(int first, int end, float bar, uint32_t gone, Racer& best) const {
    const float shift = bar == kNoBar ? bar : bar - (0.01f + 2e-6f * fabsf(bar));  // more than the errors of float32
    const int groups = first < end ? ((end - 1 - first) / kWarps + 1) * kGroups : 0;
    float next[kGroup] = {};
#pragma unroll 1
    for (int g = 0; groups > 0 && g <= groups; ++g) {
      float x[kGroup];
#pragma unroll
      for (int e = 0; e < kGroup; ++e) x[e] = next[e];
      if (g < groups) ask(first + g / kGroups * kWarps, g % kGroups, next);
      if (g > 0) enter(first + (g - 1) / kGroups * kWarps, (g - 1) % kGroups, shift, gone, x, best);
    }
  }

 private:
  static constexpr float kLeast = 0x1p-53f;  // the least 1 - u

  SPECDEC_DEVICE bool is_listed() const { return d_.row.is_listed(); }

  // The id at a place; -1 after the last one
  SPECDEC_DEVICE int64_t id_at(int64_t at) const {
    if (!is_listed()) return at;
    return at < d_.row.listed()->n ? d_.row.listed()->places[at].id : -1;
  }

  // log2 of an entry's weight, minus `shift`. It is -inf if the entry is not kept, and NaN for a probability that makes
  // the row invalid. Without a bar (kNoBar) every kept entry gives 0 or more.
  SPECDEC_DEVICE float of_prob(float z, float shift) const {
    const float p = clean_prob(z);
    return fast_log2(p > 0 ? fmaxf(p, FLT_MIN) : p) - shift;
  }
  SPECDEC_DEVICE float of_logit(float z, float shift) const {
    const float x = shift == kNoBar ? 0 : (0.5f * z - half_max_) * rate_ - shift;
    return z >= d_.stats.cutoff ? x : -HUGE_VALF;
  }
  // exponents() computes these numbers for group j of chunk c; ask() issues its loads before.
  SPECDEC_DEVICE void ask(int64_t c, int j, float (&x)[kGroup]) const {
    if (!is_listed()) EarlyGroupsOf<1>{{c, j}}.raw(d_.row, pad_of(d_), x);
  }
  SPECDEC_DEVICE void exponents(int64_t c, int j, float shift, float (&x)[kGroup]) const {
    if constexpr (kReadsIds) {
      if (is_listed()) return exponents_of_ids(int(id_of(c, j, 0)), shift, x);
    }
    EarlyGroupsOf<1>{{c, j}}.floats(d_.row, pad_of(d_), x);
    if (probs_) {  // tested once, not for each entry
#pragma unroll
      for (int e = 0; e < kGroup; ++e) x[e] = of_prob(x[e], shift);
    } else {
#pragma unroll
      for (int e = 0; e < kGroup; ++e) x[e] = of_logit(x[e], shift);
    }
  }
  // Tries the entries x of group j. exp2 of an entry's exponent is the largest 1 - u with which it may reach the bar.
  // If that is below kLeast for all entries, no u is large enough, and no random number is made. Entries that pass the
  // test in float32 get a key.
  SPECDEC_DEVICE void enter(int64_t c, int j, float shift, uint32_t gone, float (&x)[kGroup], Racer& best) const {
    exponents(c, j, shift, x);
    bool any = false;
#pragma unroll
    for (int e = 0; e < kGroup; ++e) x[e] = fast_exp2(x[e]), any |= !(x[e] < kLeast);
    if (!any) return;
    uint32_t may = 0;
    each_noise(c, j,
               [&](int e, uint32_t high) { may |= uint32_t(!(fmaxf(least_distance(high), kLeast) > x[e])) << e; });
    may &= ~(gone >> kGroup * j);
#pragma unroll 1
    for (; may; may &= may - 1) best.meet(racer(id_of(c, j, 0) + __ffs(int(may)) - 1));
  }
  SPECDEC_DEVICE void exponents_of_ids(int first, float shift, float (&x)[kGroup]) const {
    const Listed& row = *d_.row.listed();
#pragma unroll
    for (int e = 0; e < kGroup; ++e) {
      x[e] = -HUGE_VALF;
      if (!starts(row, first + e)) continue;
      const int32_t id = row.places[first + e].id;
      float most = -HUGE_VALF;
      int n = 0;  // the sum of n weights is at most n times the largest
#pragma unroll 1
      for (int i = first + e; i < row.n && row.places[i].id == id; ++i, ++n)
        most = fmaxf(most, of_logit(row.entry(row.places[i].at), shift));
      x[e] = n == 1 ? most : most + fast_log2(float(n));
    }
  }
  // Whether place i is the first one of its id
  SPECDEC_DEVICE static bool starts(const Listed& row, int i) {
    return i < row.n && (i == 0 || row.places[i - 1].id != row.places[i].id);
  }
  // Calls f with the exponents of each group of this lane in chunk c; they are -inf for the entries that are gone.
  template <class F>
  SPECDEC_DEVICE void for_groups(int c, uint32_t gone, float shift, const F& f) const {
#pragma unroll 1
    for (int j = 0; j < kGroups; ++j) {
      float x[kGroup];
      ask(c, j, x);
      exponents(c, j, shift, x);
#pragma unroll
      for (int e = 0; e < kGroup; ++e) x[e] = gone >> (kGroup * j + e) & 1 ? -HUGE_VALF : x[e];
      f(x);
    }
  }

  // A lower bound of 1 - u, from the leading word of u
  SPECDEC_DEVICE static float least_distance(uint32_t high) { return __uint_as_float(0x3f800000u | ~high >> 9) - 1.0f; }
  // Block `block` of Philox's output for the noise of this position; it has the uniforms of two ids.
  SPECDEC_DEVICE Words words(uint32_t block) const {
    const uint64_t seed = uint64_t(noise_.seed), at = uint64_t(noise_.position);
    return philox4x32({{block, uint32_t(at), uint32_t(at >> 32), kDomainNoise}}, uint32_t(seed), uint32_t(seed >> 32),
                      [](uint32_t x, uint32_t y) { return wide_product(x, y); });
  }
  // Calls f(e, the leading word of the uniform) for the entries e of group j. Two adjacent ids share a block of Philox.
  template <class F>
  SPECDEC_DEVICE void each_noise(int64_t c, int j, const F& f) const {
    const uint32_t first = uint32_t(id_of(c, j, 0));
    if constexpr (kReadsIds) {
      if (is_listed()) {
        const Listed& row = *d_.row.listed();
#pragma unroll
        for (int e = 0; e < kGroup; ++e) {
          const uint32_t id = first + e < uint32_t(row.n) ? uint32_t(row.places[first + e].id) : 0;
          const Words w = words(id / 2);
          f(e, id % 2 ? w.w[2] : w.w[0]);
        }
        return;
      }
    }
#pragma unroll
    for (int e = 0; e < kGroup; e += 2) {
      const Words w = words(first / 2 + e / 2);
      f(e, w.w[0]), f(e + 1, w.w[2]);
    }
  }

  // The racer at a place, with its key in float64
  SPECDEC_DEVICE Racer racer(int64_t at) const {
    int64_t id = at;
    double weight = -HUGE_VAL;
    if constexpr (kReadsIds) {
      if (is_listed()) {
        const Listed& row = *d_.row.listed();
        id = row.places[at].id;
#pragma unroll 1
        for (int i = int(at); i < row.n && row.places[i].id == id; ++i)
          weight = sum_of_weights(weight, race_weight(d_, row.entry(row.places[i].at)));
        return weight == -HUGE_VAL ? Racer{} : Racer{weight + noise_(id), id};
      }
    }
    if (at < d_.row.V) weight = race_weight(d_, d_.row.entry(at));
    return weight == -HUGE_VAL ? Racer{} : Racer{weight + noise_(id), id};
  }

  const Dist& d_;
  const Noise noise_;
  const float half_max_, rate_;
  const bool probs_;
};

}  // namespace specdec
