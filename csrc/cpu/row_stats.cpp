// SPDX-License-Identifier: Apache-2.0
// The four floats of a row of logits, by a CpuExecutor.
#include <algorithm>
#include <cmath>
#include <functional>

#include "row_executor.h"

namespace specdec {

// Takes the n logits of chunk c relative to the largest of them. False where none is kept.
bool CpuExecutor::sum_chunk(const float* z, int64_t c, int n, float scale, float cutoff) {
  max_[c] = rows_.max(z, n);
  sum_[c] = 0;
  if (!(max_[c] >= cutoff && max_[c] > -HUGE_VALF)) return false;
  if (sums_surprise_) {
    const ExpSums sums = rows_.exp_sums(z, n, max_[c], scale, cutoff);
    sum_[c] = sums.sum, surprise_[c] = sums.surprise;
  } else {
    sum_[c] = rows_.exp_sum(z, n, max_[c], scale, cutoff);
  }
  return true;
}

// What sum_chunk() took, relative to the row's maximum.
ExpTotals CpuExecutor::total_at(float max, float scale) {
  ExpTotals total{0, 0};
  for (int64_t c = 0; c < chunks_; ++c) {
    if (sum_[c] > 0) {
      const float below = scaled(max_[c], max, scale), weight = std::exp(below);
      if (sums_surprise_ && weight > 0) total.surprise += weight * (surprise_[c] - below * sum_[c]);
      sum_[c] *= weight;
    }
    total.sum += sum_[c];
  }
  return total;
}

// The log-normaliser of sums that add up to `total`, NaN where nothing is left; the sums become those of p.
float CpuExecutor::normalise(double total) {
  const float log_norm = has_mass(total) ? float(std::log(total)) : NAN;
  const double norm = std::exp(-double(log_norm));
  for (int64_t c = 0; c < chunks_; ++c) sum_[c] *= norm;
  return log_norm;
}

RowStats CpuExecutor::stats(const Row& row, const Filters& filters) {
  chunks_ = chunk_count(row.V);
  held_ = {};
  removed_ = {};
  peaks_ = row;
  const bool greedy = filters.greedy(), filtered = filters.any(row.V);
  const float scale = filters.scale();

  for_chunks(chunks_, [&](int64_t c) {
    float buf[kChunk];
    const float* z = load_logits(row, c, buf);
    const int n = chunk_size(row.V, c);
    if (!greedy && !filtered && sum_chunk(z, c, n, scale, -FLT_MAX)) {
      bad_[c] = std::isnan(sum_[c]) || max_[c] == HUGE_VALF;
      return;
    }
    const ChunkMax s = rows_.chunk_max(z, padded(n));
    max_[c] = s.max;
    bad_[c] = s.bad;
    sum_[c] = 0;
  });

  float max = -HUGE_VALF;
  bool bad = !filters.sane();
  for (int64_t c = 0; c < chunks_; ++c) max = std::max(max, max_[c]), bad |= bad_[c];
  max += 0.0f;  // -0 and +0 are one logit, and stand as +0 in a law
  if (bad || max == -HUGE_VALF) {
    const float z = row.V ? load_scalar(row, argmax_finite(row)) : -HUGE_VALF;
    return {scale, -FLT_MAX, NAN, std::isfinite(z) ? z + 0.0f : -HUGE_VALF};
  }
  if (greedy) {
    int64_t id = (std::find(max_.begin(), max_.end(), max) - max_.begin()) * kChunk;
    while (load_scalar(row, id) != max) ++id;
    return {scale, max, float(id), max};
  }

  const float kept = filtered ? cutoff(row, filters, scale, max) : -FLT_MAX;
  const ExpTotals total = filtered ? ExpTotals{kept_sum(row, max, scale, kept), 0} : total_at(max, scale);
  const RowStats stats{scale, kept + 0.0f, normalise(total.sum), max};
  held_ = from_stats(row, stats);
  if (sums_surprise_ && !filtered) {
    remember(held_, stats.log_norm + total.surprise * std::exp(-double(stats.log_norm)));
  }
  return stats;
}

RowStats CpuExecutor::stats_without(const Dist& q, const Removed& removed) {
  RowStats left = q.stats;
  chunks_ = chunk_count(q.row.V);
  held_ = {}, peaks_ = {};
  for_chunks(chunks_, [&](int64_t c) {
    float buf[kChunk];
    const int n = chunk_size(q.row.V, c);
    sum_chunk(without(removed, c, n, -HUGE_VALF, load_logits(q.row, c, buf), buf), c, n, left.scale, left.cutoff);
  });
  left.max = -HUGE_VALF;
  for (int64_t c = 0; c < chunks_; ++c)
    if (sum_[c] > 0) left.max = std::max(left.max, max_[c]);
  left.log_norm = normalise(total_at(left.max, left.scale).sum);
  return left;
}

// Filters in the order min-p, top-k, top-p; each is "keep z >= cutoff", so all ties stay.
float CpuExecutor::cutoff(const Row& row, const Filters& filters, float scale, float max) {
  float kept = filters.min_p_cutoff(max);
  if (filters.top_k_on(row.V)) {
    // At least k logits reach the k-th largest chunk maximum, and the k-th largest logit of any one chunk.
    float buf[kChunk];
    std::vector<float> some(max_.begin(), max_.begin() + chunks_);
    if (filters.top_k > chunks_) {
      const float* z = load_logits(row, 0, buf);
      some.assign(z, z + chunk_size(row.V, 0));
    }
    float lo = kept;
    if (filters.top_k <= int64_t(some.size())) {
      const auto kth = some.begin() + (filters.top_k - 1);
      std::nth_element(some.begin(), kth, some.end(), std::greater<float>());
      lo = std::max(lo, *kth);
    }
    kept = std::max(kept, crossing(row, lo, double(filters.top_k), [](float) { return uint64_t{1}; }));
  }
  if (filters.top_p < 1) {
    const double total = kept_sum(row, max, scale, kept);
    const float lo = std::max(kept, filters.top_p_bound(max, total, row.V));
    // Fixed point: integer sums do not depend on their order.
    constexpr double kOne = 0x1p40;
    kept = std::max(kept, crossing(row, lo, filters.top_p * total * kOne,
                                   [=](float z) { return uint64_t(std::exp(scaled(z, max, scale)) * float(kOne)); }));
  }
  return kept;
}

double CpuExecutor::kept_sum(const Row& row, float max, float scale, float cutoff) {
  for_chunks(chunks_, [&](int64_t c) {
    sum_[c] = 0;
    if (max_[c] < cutoff) return;
    float buf[kChunk];
    const float* z = load_logits(row, c, buf);
    sum_[c] = rows_.exp_sum(z, chunk_size(row.V, c), max, scale, cutoff);
  });
  double total = 0;
  for (int64_t c = 0; c < chunks_; ++c) total += sum_[c];
  return total;
}

// The largest logit z* >= lo with weight{z >= z*} >= target (the smallest one >= lo if none): an exact radix select
// over the ordered bits of a float, 11 + 11 + 10 at a time. Few logits usually reach lo; then one scan finds them all.
template <class Weigh>
float CpuExecutor::crossing(const Row& row, float lo, double target, const Weigh& weigh) const {
  constexpr size_t kFew = 4096;
  std::vector<float> few;
  bool all = false;  // `few` holds every logit in [lo, hi]
  float hi = FLT_MAX;
  const auto for_each = [&](const auto& f) {
    if (all) {
      for (const float z : few) f(z);
      return;
    }
    all = true;
    few.clear();
    for (int64_t c = 0; c < chunks_; ++c) {
      if (max_[c] < lo) continue;
      float buf[kChunk];
      int hits[kChunk];
      const float* z = load_logits(row, c, buf);
      const int n = rows_.find(z, padded(chunk_size(row.V, c)), lo, hi, hits);
      for (int i = 0; i < n; ++i) f(z[hits[i]]);
      all = all && few.size() + n <= kFew;
      for (int i = 0; i < n && all; ++i) few.push_back(z[hits[i]]);
    }
  };

  uint32_t prefix = 0, known = 0;  // the high bits found so far, and their mask
  double above = 0;
  std::vector<uint64_t> histogram(2048);
  for (const int shift : {21, 10, 0}) {
    std::fill(histogram.begin(), histogram.end(), 0);
    const uint32_t mask = shift ? 0x7ff : 0x3ff;
    for_each([&](float z) {
      const uint32_t key = ordered(z);
      if ((key & known) == prefix) histogram[key >> shift & mask] += weigh(z);
    });
    uint32_t bin = mask;
    bool reached = false;
    for (int b = int(mask); b >= 0 && !reached; --b) {
      if (!histogram[b]) continue;
      bin = uint32_t(b);
      reached = above + double(histogram[b]) >= target;
      if (!reached) above += double(histogram[b]);
    }
    if (!reached) target = HUGE_VAL;  // everything from lo up is kept: go on to the smallest
    prefix |= bin << shift;
    known |= mask << shift;
    lo = std::max(lo, from_ordered(prefix));
    hi = from_ordered(prefix | ~known);
  }
  return from_ordered(prefix);
}

}  // namespace specdec
