// SPDX-License-Identifier: Apache-2.0
// The weights of row entries, which are their probabilities, and sums of (p - q)+ over chunks.
#pragma once

#include "warp.cuh"

namespace specdec {

// The weights of logits, with the stats of their row in registers
struct LogitWeights {
  static constexpr Kind kKind = Kind::kLogits;
  float half_max, rate, norm, cutoff;

  SPECDEC_DEVICE explicit LogitWeights(const RowStats& stats)
      : half_max(0.5f * stats.max),
        rate(2 * (stats.scale * kLog2E)),
        norm(stats.log_norm * kLog2E),
        cutoff(stats.cutoff) {}
  SPECDEC_DEVICE explicit LogitWeights(const Dist& p) : LogitWeights(p.stats) {}

  // The weight of a logit, whatever the cutoff
  SPECDEC_DEVICE float weight(float z) const { return fast_exp2(exponent(z)); }
  SPECDEC_DEVICE float of_target(float z) const {
    const float w = weight(z);
    return z >= cutoff ? w : 0.0f;
  }
  // The weight that a residual subtracts. It is 0 if weight() is no probability, and 1 if rounding made weight()
  // slightly larger.
  SPECDEC_DEVICE float of_draft(float z) const {
    const float w = weight(z);
    return z >= cutoff && w <= 1.0f + 1e-3f ? fminf(w, 1.0f) : 0.0f;
  }
  // log2 of weight()
  SPECDEC_DEVICE float exponent(float z) const { return (0.5f * z - half_max) * rate - norm; }
};

// The same for entries that are probabilities
struct ProbWeights {
  static constexpr Kind kKind = Kind::kProbs;

  SPECDEC_DEVICE explicit ProbWeights(const Dist&) {}
  SPECDEC_DEVICE float of_target(float z) const { return clean_prob(z); }
  SPECDEC_DEVICE float of_draft(float z) const { return z > 0 && z <= 1.0f + 1e-3f ? fminf(z, 1.0f) : 0.0f; }
};

// Calls f with the weights for the kind of d, so that the kind is tested once and not for each entry.
template <class F>
SPECDEC_DEVICE void with_weights(const Dist& d, const F& f) {
  d.kind == Kind::kProbs ? f(ProbWeights(d)) : f(LogitWeights(d));
}

// Loads the entries of a distribution's row, by id.
template <class At>
SPECDEC_DEVICE void load(const Dist& d, const At& at, float pad, float (&z)[At::kEntries]) {
  if (d.row.is_listed())
    load_listed(d.row.listed(), d.stats, at, z);
  else
    at.load(d.row, pad, z);
}

// Replaces entries of a row by their weights; a probability that is not finite becomes NaN.
template <int N>
SPECDEC_DEVICE void to_target_weights(const Dist& p, float (&z)[N]) {
  with_weights(p, [&](const auto& weights) {
#pragma unroll
    for (int r = 0; r < N; ++r) z[r] = weights.of_target(z[r]);
  });
}
// Replaces entries of a row by the weights that a residual subtracts.
template <int N>
SPECDEC_DEVICE void to_draft_weights(const Dist& q, float (&z)[N]) {
  with_weights(q, [&](const auto& weights) {
#pragma unroll
    for (int r = 0; r < N; ++r) z[r] = weights.of_draft(z[r]);
  });
}

SPECDEC_DEVICE float pad_of(const Dist& d) { return d.kind == Kind::kProbs ? 0.0f : -HUGE_VALF; }

SPECDEC_DEVICE bool has_row(const Dist& d) { return d.kind == Kind::kLogits || d.kind == Kind::kProbs; }

// The weights (p - q)+ of the entries that `at`, a GroupsOf or a RunOf, names; 0 beyond the row. p must have a row.
// There are two steps: ask() issues the loads of both rows, and weigh_asked() computes the weights w.
constexpr int kPairs = 2;  // groups of each row that most loops over two rows take at a time
template <class At>
SPECDEC_DEVICE bool takes_row(const Dist& q, const At& at) {
  return has_row(q) && at.begin() < q.row.V;
}
template <class At>
SPECDEC_DEVICE void ask(const Dist& p, const Dist& q, const At& at, float (&w)[At::kEntries],
                        float (&y)[At::kEntries]) {
  at.raw(p.row, pad_of(p), w);
  if (takes_row(q, at) && !q.row.is_listed()) at.raw(q.row, pad_of(q), y);
}
template <class At>
SPECDEC_DEVICE void weigh_asked(const Dist& p, const Dist& q, const At& at, float (&w)[At::kEntries],
                                float (&y)[At::kEntries]) {
  constexpr int N = At::kEntries;
  at.floats(p.row, pad_of(p), w);
  to_target_weights(p, w);
  if (takes_row(q, at)) {
    if (q.row.is_listed())
      load_listed(q.row.listed(), q.stats, at, y);
    else
      at.floats(q.row, pad_of(q), y);
    to_draft_weights(q, y);
#pragma unroll
    for (int r = 0; r < N; ++r) w[r] = Compare<float>::positive(w[r] - y[r]);
  } else if (q.kind == Kind::kOneHot) {
#pragma unroll
    for (int r = 0; r < N; ++r) {
      if (at.id(r) == q.hot) w[r] -= w[r];  // NaN stays
    }
  }
}

// Both steps. Calls meanwhile() after the loads are issued and before any of their results is used.
template <class At, class Meanwhile>
SPECDEC_DEVICE void weigh(const Dist& p, const Dist& q, const At& at, float (&w)[At::kEntries],
                          const Meanwhile& meanwhile) {
  float y[At::kEntries];
  ask(p, q, at, w, y);
  meanwhile();
  weigh_asked(p, q, at, w, y);
}
template <class At>
SPECDEC_DEVICE void weigh(const Dist& p, const Dist& q, const At& at, float (&w)[At::kEntries]) {
  weigh(p, q, at, w, [] {});
}

// Sum of (p - q)+ over one chunk; NaN if p is a probability row with NaN or inf there.
template <int kAtOnce>
SPECDEC_DEVICE float chunk_sum(const Dist& p, const Dist& q, int64_t chunk) {
  float sum[2] = {0, 0};
#pragma unroll 1
  for (int first = 0; first < kGroups; first += kAtOnce) {
    float w[kAtOnce * kGroup];
    weigh(p, q, EarlyGroupsOf<kAtOnce>{chunk, first}, w);
#pragma unroll
    for (int r = 0; r < kAtOnce * kGroup; ++r) sum[r % 2] += w[r];
  }
  return warp_sum(sum[0] + sum[1]);
}

// The same for rows of one dtype and one kind; q is read only if kMinus. kUnderWay groups of each row are loaded before
// any of them is used, and all parameters stay in registers. If kWhole, the chunk is one of whole_chunks() of both
// rows, and no load is conditional. Otherwise it has `left` entries, a multiple of kGroup, and the groups after them
// are padded.
template <DType kType, bool kMinus, bool kWhole, class Weights>
SPECDEC_DEVICE float grouped_chunk_sum(const Row& p, const Row& q, int64_t chunk, int left, const Weights& of_p,
                                       const Weights& of_q) {
  constexpr float kPad = Weights::kKind == Kind::kProbs ? 0.0f : -HUGE_VALF;
  constexpr int kUnderWay = kType == kFloat32 ? kGroups / 2 : kGroups;
  const char *at_p = group_at<kType>(p, chunk, 0), *at_q = group_at<kType>(q, chunk, 0);
  float sum[2] = {0, 0};
#pragma unroll
  for (int first = 0; first < kGroups; first += kUnderWay) {
    Group<kType> x[kUnderWay], y[kMinus ? kUnderWay : 1];
#pragma unroll
    for (int j = 0; j < kUnderWay; ++j) {
      if (kWhole || group_begin(first + j) < left) {
        x[j].load(at_p + (first + j) * Group<kType>::kStep);
        if constexpr (kMinus) y[j].load(at_q + (first + j) * Group<kType>::kStep);
      } else {
        x[j].fill(kPad);
        if constexpr (kMinus) y[j].fill(kPad);
      }
    }
#pragma unroll
    for (int r = 0; r < kUnderWay * kGroup; ++r) {
      float w = of_p.of_target(x[r / kGroup][r % kGroup]);
      if constexpr (kMinus) w = Compare<float>::positive(w - of_q.of_draft(y[r / kGroup][r % kGroup]));
      sum[r % 2] += w;
    }
  }
  return warp_sum(sum[0] + sum[1]);
}

// Whether no cutoff applies. Then of_target() is weight() for every logit but NaN, and so is of_draft() if weight() is
// at most 1. The weight of -inf is 0.
SPECDEC_DEVICE bool keeps_all(const LogitWeights& of) { return of.cutoff == -FLT_MAX && of.rate > 0; }

// Returns the bits of grouped_chunk_sum() for two 16-bit rows that both satisfy keeps_all(). It compares no entry with
// a cutoff, and no weight of q with 1. It returns NaN if an entry is NaN, or if the largest weight of q in the chunk
// may reach 1. The caller then sums the chunk in another way. Testing q's largest logit is enough: exponent() never
// falls as the logit grows, and fast_exp2() is off by at most 2 ulp.
template <DType kType>
SPECDEC_DEVICE float plain_chunk_sum(const Row& p, const Row& q, int64_t chunk, const LogitWeights& of_p,
                                     const LogitWeights& of_q) {
  constexpr float kSurelyLess = -0x1p-9f;
  const char *at_p = group_at<kType>(p, chunk, 0), *at_q = group_at<kType>(q, chunk, 0);
  Group<kType> x[kGroups], y[kGroups];
#pragma unroll
  for (int j = 0; j < kGroups; ++j)
    x[j].load(at_p + j * Group<kType>::kStep), y[j].load(at_q + j * Group<kType>::kStep);
  float sum[2] = {0, 0};
#pragma unroll
  for (int r = 0; r < kGroups * kGroup; ++r)
    sum[r % 2] +=
        Compare<float>::positive(of_p.weight(x[r / kGroup][r % kGroup]) - of_q.weight(y[r / kGroup][r % kGroup]));
  const bool plain = of_q.exponent(lane_max<kType>(y)) <= kSurelyLess;
  return warp_sum(plain ? sum[0] + sum[1] : NAN);
}

// Writes (p - q)+ * factor over one chunk to out [V].
SPECDEC_DEVICE void write_chunk(const Dist& p, const Dist& q, int64_t chunk, double factor, float* out) {
#pragma unroll 1
  for (int first = 0; first < kGroups; first += kPairs) {
    float w[kPairs * kGroup];
    weigh(p, q, GroupsOf<kPairs>{chunk, first}, w);
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
