// SPDX-License-Identifier: Apache-2.0
#include "row_executor.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "../core/final_token.h"

namespace specdec {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

const float* load_logits(const RowKernels& rows, const Row& row, int64_t c, float* buf) {
  const int n = chunk_size(row.V, c);
  return rows.load(row, c * kChunk, n, n, -kInf, buf);
}

// The n entries z of chunk c, or a copy of them in buf with `value` at the ids that were taken out.
const float* without(const Removed& removed, int64_t c, int n, float value, const float* z, float* buf) {
  for (int64_t i = 0; i < removed.n; ++i) {
    const int64_t at = removed[i] - c * kChunk;
    if (at < 0 || at >= n) continue;
    if (z != buf) z = std::copy(z, z + padded(n), buf) - padded(n);
    buf[at] = value;
  }
  return z;
}

}  // namespace

CpuExecutor::CpuExecutor(int64_t max_V, bool wide)
    : wide_(wide), max_(chunk_count(max_V)), bad_(max_.size()), sum_(max_.size()), surprise_(max_.size()) {}

RowStats CpuExecutor::stats(const Row& row, const Filters& filters) {
  chunks_ = chunk_count(row.V);
  held_ = {};
  removed_ = {};
  peaks_ = row;
  const bool greedy = filters.greedy(), filtered = filters.any(row.V);
  const float scale = filters.scale();

  for_chunks(chunks_, [&](int64_t c) {
    float buf[kChunk];
    const float* z = load_logits(rows_, row, c, buf);
    const int n = chunk_size(row.V, c);
    if (!greedy && !filtered && (max_[c] = rows_.max(z, n)) > -kInf) {
      if (sums_surprise_) {
        const ExpSums sums = rows_.exp_sums(z, n, max_[c], scale, -FLT_MAX);
        sum_[c] = sums.sum, surprise_[c] = sums.surprise;
      } else {
        sum_[c] = rows_.exp_sum(z, n, max_[c], scale, -FLT_MAX);
      }
      bad_[c] = std::isnan(sum_[c]) || max_[c] == kInf;
      return;
    }
    const ChunkMax s = rows_.chunk_max(z, padded(n));
    max_[c] = s.max;
    bad_[c] = s.bad;
    sum_[c] = 0;
  });

  float max = -kInf;
  bool bad = !filters.sane();
  for (int64_t c = 0; c < chunks_; ++c) max = std::max(max, max_[c]), bad |= bad_[c];
  max += 0.0f;  // -0 and +0 are one logit, and stand as +0 in a law
  if (bad || max == -kInf) {
    const int64_t id = argmax_finite(row);
    const float z = row.V ? load_scalar(row, id) : -kInf;
    return {scale, -FLT_MAX, kNaN, std::isfinite(z) ? z + 0.0f : -kInf};
  }

  if (greedy) {
    const int64_t c = std::find(max_.begin(), max_.end(), max) - max_.begin();
    int64_t id = c * kChunk;
    while (load_scalar(row, id) != max) ++id;
    return {scale, max, float(id), max};
  }

  float kept = -FLT_MAX;
  double total = 0, surprise = 0;
  if (filtered) {
    kept = cutoff(row, filters, scale, max);
    total = kept_sum(row, max, scale, kept);
  } else {
    for (int64_t c = 0; c < chunks_; ++c) {
      if (sum_[c] > 0) {
        const float below = scaled(max_[c], max, scale), weight = std::exp(below);
        if (sums_surprise_ && weight > 0) surprise += weight * (surprise_[c] - below * sum_[c]);
        sum_[c] *= weight;
      }
      total += sum_[c];
    }
  }
  const float log_norm = float(std::log(total));
  const double norm = std::exp(-double(log_norm));
  for (int64_t c = 0; c < chunks_; ++c) sum_[c] *= norm;
  const RowStats stats{scale, kept + 0.0f, log_norm, max};
  held_ = from_stats(row, stats);
  if (sums_surprise_ && !filtered) remember(held_, log_norm + surprise * norm);
  return stats;
}

// Filters in the order min-p, top-k, top-p; each is "keep z >= cutoff", so all ties stay.
float CpuExecutor::cutoff(const Row& row, const Filters& filters, float scale, float max) {
  float kept = filters.min_p_cutoff(max);
  if (filters.top_k_on(row.V)) {
    // At least k logits reach the k-th largest chunk maximum, and the k-th largest logit of any one chunk.
    float buf[kChunk];
    std::vector<float> some(max_.begin(), max_.begin() + chunks_);
    if (filters.top_k > chunks_) {
      const float* z = load_logits(rows_, row, 0, buf);
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
    const float* z = load_logits(rows_, row, c, buf);
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
      const float* z = load_logits(rows_, row, c, buf);
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

// Whether the sums at hand are those of p itself: stats() leaves them, so the bonus draw reads only one chunk again.
bool CpuExecutor::holds(const Dist& p) const { return same(held_, p) && removed_.n == 0; }

double CpuExecutor::sum(const Residual& residual) {
  const bool plain = residual.n == 0 && !residual.mixture;
  if (!plain || !holds(residual.p)) {
    removed_ = {};
    chunks_ = chunk_count(residual.p.row.V);
    for_chunks(chunks_, [&](int64_t c) {
      float w[kChunk];
      sum_[c] = weights(residual, c, w);
    });
    held_ = plain ? residual.p : Dist{};
  }
  double total = 0;
  for (int64_t c = 0; c < chunks_; ++c) total += sum_[c];
  return total;
}

RowStats CpuExecutor::stats_without(const Dist& q, const Removed& removed) {
  RowStats left = q.stats;
  chunks_ = chunk_count(q.row.V);
  held_ = {}, peaks_ = {};
  for_chunks(chunks_, [&](int64_t c) {
    const int n = chunk_size(q.row.V, c);
    float buf[kChunk];
    const float* z = without(removed, c, n, -kInf, load_logits(rows_, q.row, c, buf), buf);
    max_[c] = rows_.max(z, n);
    const bool kept = max_[c] >= left.cutoff && max_[c] > -kInf;
    sum_[c] = kept ? rows_.exp_sum(z, n, max_[c], left.scale, left.cutoff) : 0;
  });
  left.max = -kInf;
  for (int64_t c = 0; c < chunks_; ++c)
    if (sum_[c] > 0) left.max = std::max(left.max, max_[c]);
  double total = 0;
  for (int64_t c = 0; c < chunks_; ++c) {
    if (sum_[c] > 0) sum_[c] *= std::exp(scaled(max_[c], left.max, left.scale));
    total += sum_[c];
  }
  left.log_norm = has_mass(total) ? float(std::log(total)) : kNaN;
  const double norm = std::exp(-double(left.log_norm));
  for (int64_t c = 0; c < chunks_; ++c) sum_[c] *= norm;
  return left;
}

double CpuExecutor::mass_without(const Dist& q, const Removed& removed) const {
  return total_of(chunk_count(q.row.V), [&](int64_t c) {
    const int n = chunk_size(q.row.V, c);
    float buf[kChunk];
    return rows_.draft(drafted(q, removed, c, n, buf), n, buf);
  });
}

PairMass CpuExecutor::masses(const Residual& p, const Dist& q) {
  if (!p.mixture) return masses(p.p, q);
  return pair_.masses(p.p, q, wide_, [&](int64_t c, int n, float* out) {
    const int m = int(std::clamp<int64_t>(p.p.row.V - c * kChunk, 0, n));
    if (m > 0 && std::isnan(weights(p, c, out))) return double(kNaN);
    std::fill(out + m, out + padded(n), 0.0f);
    return rows_.total(out, n);
  });
}

// The chunk is summed again rather than subtracted from: what is left of it may be far smaller than what was taken.
Dist CpuExecutor::exclude(const Dist& p, const Removed& removed) {
  removed_ = removed;
  const int64_t c = removed[removed.n - 1] / kChunk;
  float w[kChunk];
  sum_[c] = weights(p, Dist{}, c, w);
  double total = 0;
  for (int64_t i = 0; i < chunks_; ++i) total += sum_[i];
  if (total >= kEnough) return p;
  Dist left = p;
  left.stats = stats_without(p, removed);
  return left.valid() ? left : Dist{};
}

float CpuExecutor::plain_weights(const Dist& p, int64_t c, float* w) const {
  const int n = chunk_size(p.row.V, c);
  float sum;
  if (p.kind == Kind::kLogits) {
    sum = rows_.probs(load_logits(rows_, p.row, c, w), n, p.stats, w);
  } else {
    const float* z = rows_.load(p.row, c * kChunk, n, n, 0.0f, w);
    if (rows_.chunk_max(z, padded(n)).bad) return kNaN;
    sum = rows_.clean(z, n, w);
  }
  bool changed = false;
  for (int64_t i = 0; i < removed_.n; ++i)
    if (removed_[i] / kChunk == c) w[removed_[i] - c * kChunk] = 0, changed = true;
  return changed ? rows_.clean(w, n, w) : sum;
}

const float* CpuExecutor::drafted(const Dist& q, const Removed& removed, int64_t c, int n, float* buf) const {
  const int64_t begin = c * kChunk;
  if (begin >= q.row.V) return nullptr;
  const int m = std::min(chunk_size(q.row.V, c), n);
  const float* z = rows_.load(q.row, begin, m, n, q.kind == Kind::kLogits ? -kInf : 0.0f, buf);
  if (q.kind == Kind::kLogits) rows_.probs(z, n, q.stats, buf), z = buf;
  return without(removed, c, n, 0, z, buf);
}

const float* CpuExecutor::draft_probs(const Dist& q, int64_t c, int n, float* buf) const {
  const float* y = q.kind == Kind::kOneHot ? nullptr : drafted(q, Removed{}, c, n, buf);
  if (y) return y;
  std::fill(buf, buf + padded(n), 0.0f);
  if (q.kind == Kind::kOneHot && q.hot / kChunk == c && q.hot % kChunk < n) buf[q.hot % kChunk] = 1;
  return buf;
}

const float* CpuExecutor::entries(const Row& row, int64_t V, int64_t c, int n, float pad, float* buf) const {
  const int m = int(std::clamp<int64_t>(std::min(V, row.V) - c * kChunk, 0, n));
  if (m > 0) return rows_.load(row, c * kChunk, m, n, pad, buf);
  std::fill(buf, buf + padded(n), pad);
  return buf;
}

float CpuExecutor::mixed_weights(const Dist& p, const Mixture& mixture, int64_t c, float* w) const {
  const int n = chunk_size(p.row.V, c);
  float of_q[kChunk], of_score_row[kChunk];
  if (p.kind == Kind::kOneHot)
    draft_probs(p, c, n, w);
  else if (std::isnan(plain_weights(p, c, w)))
    return kNaN;
  const float* q = draft_probs(mixture.q, c, n, of_q);
  if (mixture.capped) return rows_.cap(w, q, n, mixture.of_q, mixture.of_p, mixture.m, mixture.minus);
  // What a one-hot ruler says is said by q, which has no more than that one id.
  const bool has_score_row = mixture.score_row.kind == Kind::kLogits || mixture.score_row.kind == Kind::kProbs;
  const float* score_row = has_score_row ? entries(mixture.score_row.row, p.row.V, c, n, kNaN, of_score_row) : q;
  return rows_.mix(w, q, score_row, n, mixture.threshold, mixture.m * mixture.of_p, mixture.kept(), -mixture.minus);
}

float CpuExecutor::weights(const Residual& residual, int64_t c, float* w) const {
  const int64_t begin = c * kChunk;
  const int n = chunk_size(residual.p.row.V, c);
  float sum = residual.mixture ? mixed_weights(residual.p, *residual.mixture, c, w) : plain_weights(residual.p, c, w),
        factor = 1;
  bool changed = false;  // since `sum`
  for (int64_t j = 0; j < residual.n; ++j) {
    if (sum == 0) return 0;  // nothing to take q from: its row need not be read
    const Subtraction& subtraction = residual.subtractions[j];
    factor *= subtraction.m;
    if (subtraction.q.kind == Kind::kNothing) continue;
    if (subtraction.q.kind == Kind::kOneHot) {
      if (subtraction.q.hot >= begin && subtraction.q.hot < begin + n) w[subtraction.q.hot - begin] = 0, changed = true;
      continue;
    }
    float buf[kChunk];
    const float* q = drafted(subtraction.q, removed_by(residual.subtractions, j), c, n, buf);
    if (!q) continue;
    sum = std::isnan(sum) ? sum : rows_.subtract(w, q, n, factor, subtraction.s, subtraction.cap);
    factor = 1, changed = false;
  }
  return (changed || factor != 1) && sum > 0 ? rows_.scale(w, n, factor) : sum;
}

int64_t CpuExecutor::draw(const Residual& residual, double v) const {
  double total = 0;
  for (int64_t c = 0; c < chunks_; ++c) total += sum_[c];
  const double target = v * total;
  // The last chunk with mass stands in where rounding leaves the target unreached; so does the last id below.
  double before = 0, inside = 0;
  int64_t chunk = 0;
  double running = 0;
  for (int64_t c = 0; c < chunks_; ++c) {
    if (!(sum_[c] > 0)) continue;
    chunk = c;
    before = running;
    inside = sum_[c];
    running += sum_[c];
    if (running > target) break;
  }
  float w[kChunk];
  weights(residual, chunk, w);
  const int n = chunk_size(residual.p.row.V, chunk);
  double local = 0;
  for (int i = 0; i < n; ++i) local += w[i];
  const double local_target = (target - before) / inside * local;  // the rescan's own scale
  int last = 0;
  running = 0;
  for (int i = 0; i < n; ++i) {
    if (!(w[i] > 0)) continue;
    last = i;
    running += w[i];
    if (running > local_target) break;
  }
  return chunk * kChunk + last;
}

int64_t CpuExecutor::argmax_finite(const Row& row) const {
  int64_t best = 0;
  float max = -kInf;
  for (int64_t v = 0; v < row.V; ++v) {
    const float z = load_scalar(row, v);
    if (z > max && z < kInf) max = z, best = v;
  }
  return best;
}

}  // namespace specdec
