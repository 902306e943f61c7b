// SPDX-License-Identifier: Apache-2.0
#include "row_executor.h"

#include <algorithm>
#include <cmath>

namespace specdec {

CpuExecutor::CpuExecutor(int64_t max_V, bool wide, ShardTask* task)
    : wide_(wide), task_(task), max_(chunk_count(max_V)), sum_(max_.size()), surprise_(max_.size()) {}

// Whether the sums at hand are those of p itself: stats() leaves them, so the bonus draw reads only one chunk again.
bool CpuExecutor::holds(const Dist& p) const { return same(held_, p) && removed_.n == 0; }

double CpuExecutor::sum(const Residual& residual) {
  const bool plain = residual.n == 0 && !residual.mixture;
  if (!plain || !holds(residual.p)) {
    removed_ = {};
    chunks_ = chunk_count(residual.p.row.V);
    const auto sum_of = [&](int64_t c) {
      float w[kChunk];
      return weights(residual, c, w);
    };
    for_chunks(chunks_, sum_of, [&](int64_t c, float sum) { sum_[c] = sum; });
    held_ = plain ? residual.p : Dist{};
  }
  double total = 0;
  for (int64_t c = 0; c < chunks_; ++c) total += sum_[c];
  return total;
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
  return pair_.masses(p.p, q, each_of_pair(true), [&](int64_t c, int n, float* out) {
    const int m = int(std::clamp<int64_t>(p.p.row.V - c * kChunk, 0, n));
    if (m > 0 && std::isnan(weights(p, c, out))) return double(NAN);
    std::fill(out + m, out + padded(n), 0.0f);
    return rows_.total(out, n);
  });
}

// The chunk is summed again rather than subtracted from: what is left of it may be far smaller than what was taken.
Dist CpuExecutor::exclude(const Dist& p, const Removed& removed) {
  removed_ = removed;
  const int64_t c = removed[removed.n - 1] / kChunk;
  const auto sum_of = [&] {
    float w[kChunk];
    return weights(p, Dist{}, c, w);
  };
  sum_[c] = task_ ? task_->value_of<float>(task_->split.owner(c), sum_of) : sum_of();
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
    sum = rows_.probs(logits(p.row, c, w), n, p.stats, w);
  } else {
    const float* z = rows_.load(p.row, c * kChunk, n, n, 0.0f, w);
    if (rows_.chunk_max(z, padded(n), nullptr).bad) return NAN;
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
  const float* z = rows_.load(q.row, begin, m, n, q.kind == Kind::kLogits ? -HUGE_VALF : 0.0f, buf);
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
    return NAN;
  const float* q = draft_probs(mixture.q, c, n, of_q);
  if (mixture.capped) return rows_.cap(w, q, n, mixture.of_q, mixture.of_p, mixture.m, mixture.minus);
  // What a one-hot score row says is said by q, which has no more than that one id.
  const bool has_score_row = mixture.score_row.kind == Kind::kLogits || mixture.score_row.kind == Kind::kProbs;
  const float* score_row = has_score_row ? entries(mixture.score_row.row, p.row.V, c, n, NAN, of_score_row) : q;
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
  const double share = (target - before) / inside;
  if (!task_) return draw_in(residual, chunk, share);
  struct Drawn {
    int32_t within;
    float entry;  // of p's row, which is likely to be asked for next
  };
  const Row& row = residual.p.row;
  const Drawn drawn = task_->value_of<Drawn>(task_->split.owner(chunk), [&] {
    const int64_t id = draw_in(residual, chunk, share);
    return Drawn{int32_t(id - chunk * kChunk), row.data ? local_entry(row, id) : 0};
  });
  const int64_t id = chunk * kChunk + drawn.within;
  if (row.data) task_->know(row, id, drawn.entry);
  return id;
}

// The first id with mass of a chunk whose running sum exceeds that share of the chunk's.
int64_t CpuExecutor::draw_in(const Residual& residual, int64_t c, double share) const {
  float w[kChunk];
  weights(residual, c, w);
  const int n = chunk_size(residual.p.row.V, c);
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += w[i];
  const double target = share * sum;  // the rescan's own scale
  int last = 0;
  double running = 0;
  for (int i = 0; i < n; ++i) {
    if (!(w[i] > 0)) continue;
    last = i;
    running += w[i];
    if (running > target) break;
  }
  return c * kChunk + last;
}

int64_t CpuExecutor::argmax_of(const Row& row, int64_t begin, int64_t end) const {
  int64_t best = -1;
  float max = -HUGE_VALF;
  for (int64_t v = begin; v < end; ++v) {
    const float z = local_entry(row, v);
    if (z > max && z < HUGE_VALF) max = z, best = v;
  }
  return best;
}

int64_t CpuExecutor::argmax_finite(const Row& row) const {
  if (!task_) return std::max<int64_t>(argmax_of(row, 0, row.V), 0);
  struct Best {
    float z;
    int32_t id;
  };
  const auto best_here = [&] {
    const auto end_of = [&](int64_t c) { return std::min(c * kChunk, row.V); };
    const int64_t chunks = chunk_count(row.V);
    const int32_t id = int32_t(argmax_of(row, end_of(task_->split.begin(chunks)), end_of(task_->split.end(chunks))));
    return Best{id < 0 ? -HUGE_VALF : local_entry(row, id), id};
  };
  Best best{-HUGE_VALF, 0};
  for (const Best& of_rank : task_->told<Best>(best_here))
    if (of_rank.id >= 0 && of_rank.z > best.z) best = of_rank;
  return best.id;
}

}  // namespace specdec
