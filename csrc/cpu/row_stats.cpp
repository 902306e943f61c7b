// SPDX-License-Identifier: Apache-2.0
// The stats of a row of logits, by a CpuExecutor
#include <algorithm>
#include <cmath>

#include "row_executor.h"

namespace specdec {

// The stats of n logits, relative to the largest of them, `max`. The sum is 0 if no logit is kept.
CpuExecutor::ChunkStats CpuExecutor::stats_of(const Entries& z, int n, float max, float scale, float cutoff) const {
  if (!(max >= cutoff && max > -HUGE_VALF)) return {max, 0, 0};
  if (!sums_surprise_) return {max, rows_.exp_sum(z, n, max, scale, cutoff), 0};
  const ExpSums sums = rows_.exp_sums(z, n, max, scale, cutoff);
  return {max, sums.sum, sums.surprise};
}

// The stats of chunk c. If `scale` is 0, only its largest entry and, if `lanes` is not null, the maxima of its lanes
// (RowKernels::chunk_max).
CpuExecutor::ChunkStats CpuExecutor::stats_of_chunk(const Row& row, int64_t c, float scale, float* lanes) const {
  alignas(64) float buf[kChunk];
  ChunkStats s{-HUGE_VALF, 0, 0};
  const Changes changes = reader_.changes(row, c);
  if (changes.empty) {
    if (lanes) std::fill(lanes, lanes + kPad, -HUGE_VALF);
    return s;
  }
  const int n = chunk_size(row.V, c);
  if (scale != 0) {
    const Entries z = reader_.chunk(row, changes, c, buf, s.max);
    s = stats_of(z, n, s.max, scale, -FLT_MAX);
    if (s.sum > 0 && s.max < HUGE_VALF) return s;
  }
  const Entries z = reader_.chunk(row, changes, c, buf);
  const ChunkMax m = rows_.chunk_max(z, padded(n), lanes);
  s = {m.bad ? NAN : m.max, 0, 0};
  return s;
}

// The totals of the chunk sums that take() stored, relative to `max`. Also makes the sums in sum_ relative to `max`.
ExpTotals CpuExecutor::total_at(float max, float scale) {
  ExpTotals total{0, 0};
  for (int64_t c = 0; c < chunks_; ++c) {
    if (sum_[c] > 0) {
      const float below = scaled(max_[c], max, scale), weight = below < 0 ? std::exp(below) : 1;
      if (sums_surprise_ && weight > 0) total.surprise += weight * (surprise_[c] - below * sum_[c]);
      sum_[c] *= weight;
    }
    total.sum += sum_[c];
  }
  return total;
}

// Returns ln(total); NaN if there is no mass. Divides the chunk sums in sum_ by `total`, which is their sum.
float CpuExecutor::normalise(double total) {
  const float log_norm = has_mass(total) ? float(std::log(total)) : NAN;
  const double norm = std::exp(-double(log_norm));
  for (int64_t c = 0; c < chunks_; ++c) sum_[c] *= norm;
  return log_norm;
}

RowStats CpuExecutor::row_stats(const Row& row, const Filters& filters) {
  chunks_ = chunk_count(row.V);
  held_ = {};
  removed_ = {};
  peaks_ = row.id();
  reader_.look_at(row);
  const bool greedy = filters.greedy(), filtered = filters.any(row.V);
  const float scale = filters.scale();
  float* lanes = nullptr;
  if (filtered && filters.top_k_on(row.V)) {
    lane_max_.resize(max_.size() * kPad);
    lanes = lane_max_.data();
  }

  const bool sums = !greedy && !filtered;
  const auto stats_of_chunk = [&](int64_t c) {
    return this->stats_of_chunk(row, c, sums ? scale : 0, lanes ? lanes + c * kPad : nullptr);
  };
  const size_t width = sums ? stats_width() : offsetof(ChunkStats, sum);
  for_chunks(chunks_, stats_of_chunk, [&](int64_t c, const ChunkStats& x) { take(c, x); }, width);

  float max = -HUGE_VALF;
  bool bad = !filters.sane();
  for (int64_t c = 0; c < chunks_; ++c) max = std::max(max, max_[c]), bad |= std::isnan(max_[c]);
  max += 0.0f;  // -0 and +0 are equal logits; stats have +0
  if (bad || max == -HUGE_VALF) {
    const int64_t at = largest_finite(row);
    const float z = at < 0 ? -HUGE_VALF : row.entry(at);
    return {scale, -FLT_MAX, NAN, std::isfinite(z) ? z + 0.0f : -HUGE_VALF};
  }
  if (greedy) {
    const int64_t c = std::find(max_.begin(), max_.end(), max) - max_.begin();
    const auto id = [&] {
      float buf[kChunk];
      const float* z = reader_.floats(row, c, NAN, buf);
      return float(row.id_at(c * kChunk + (std::find(z, z + chunk_size(row.V, c), max) - z)));
    };
    return {scale, max, task_ ? task_->value_of<float>(task_->split.owner(c), id) : id(), max};
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

RowStats CpuExecutor::stats_without(const Dist& q, const Few& removed) {
  RowStats left = q.stats;
  const Row row = q.row.as_stored();
  chunks_ = chunk_count(row.V);
  held_ = {}, peaks_ = {};
  const auto stats_of_chunk = [&](int64_t c) {
    float buf[kChunk];
    const int n = chunk_size(row.V, c);
    const float* z = with_few(row, removed, c, n, -HUGE_VALF, reader_.floats(row, c, -HUGE_VALF, buf), buf);
    return stats_of(z, n, rows_.max(z, n), left.scale, left.cutoff);
  };
  for_chunks(chunks_, stats_of_chunk, [&](int64_t c, const ChunkStats& x) { take(c, x); }, stats_width());
  left.max = -HUGE_VALF;
  for (int64_t c = 0; c < chunks_; ++c)
    if (sum_[c] > 0) left.max = std::max(left.max, max_[c]);
  left.log_norm = normalise(total_at(left.max, left.scale).sum);
  return left;
}

}  // namespace specdec
