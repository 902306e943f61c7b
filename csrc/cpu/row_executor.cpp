// SPDX-License-Identifier: Apache-2.0
#include "row_executor.h"

#include <algorithm>
#include <cmath>

namespace specdec {

CpuExecutor::CpuExecutor(int64_t max_V, bool wide, ShardTask* task)
    : wide_(wide),
      task_(task),
      reader_(task ? &task->split : nullptr),
      max_(chunk_count(max_V)),
      sum_(max_.size()),
      surprise_(max_.size()) {}

// Whether the stored chunk sums are those of p itself. stats() stores them, so drawing the bonus token reads only one
// chunk again.
bool CpuExecutor::holds(const Dist& p) const { return same(held_, p) && removed_.n == 0; }

double CpuExecutor::sum(const Residual& residual) {
  const bool plain = residual.n == 0 && !residual.mixture;
  if (!plain || !holds(residual.p)) {
    removed_ = {};
    chunks_ = chunk_count(residual.p.row.V);
    if (chunks_ > int64_t(sum_.size())) sum_.resize(chunks_);  // a row by id may have ids beyond every V
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

const float* CpuExecutor::with_few(const Row& row, const Few& few, int64_t c, int n, float value, const float* z,
                                   float* buf) {
  for (int64_t i = 0; i < few.n; ++i) {
    row.for_places(few[i], [&](int64_t place) {
      const int64_t at = place - c * kChunk;
      if (at < 0 || at >= n) return;
      if (z != buf) z = std::copy(z, z + padded(n), buf) - padded(n);
      buf[at] = value;
    });
  }
  return z;
}

double CpuExecutor::mass_without(const Dist& q, const Few& removed) const {
  return total_of(chunk_count(q.row.V), [&](int64_t c) {
    const int n = chunk_size(q.row.V, c);
    float buf[kChunk];
    return rows_.draft(probs(q, removed, c, n, buf), n, buf);
  });
}

// Sums the chunk again instead of subtracting: the remaining weight may be far smaller than the removed one.
Dist CpuExecutor::exclude(const Dist& p, const Few& removed) {
  removed_ = removed;
  p.row.for_places(removed[removed.n - 1], [&](int64_t place) {
    const int64_t c = place / kChunk;
    const auto sum_of = [&] {
      float w[kChunk];
      return weights(p, Dist{}, c, w);
    };
    sum_[c] = task_ ? task_->value_of<float>(task_->split.owner(c), sum_of) : sum_of();
  });
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
  if (p.row.by_id) {
    if (!reader_.listed.reaches(*p.row.ids, c)) return 0;
    reader_.listed.probs(p, c, n, w);
    if (p.kind == Kind::kProbs && rows_.chunk_max(w, padded(n), nullptr).bad) return NAN;
    sum = rows_.clean(w, n, w);
  } else if (p.kind == Kind::kLogits) {
    sum = rows_.probs(reader_.chunk(p.row, c, w), n, p.stats, w);
  } else {
    const float* z = reader_.floats(p.row, c, 0.0f, w);
    if (rows_.chunk_max(z, padded(n), nullptr).bad) return NAN;
    sum = rows_.clean(z, n, w);
  }
  return removed_.n ? rows_.clean(with_few(p.row, removed_, c, n, 0, w, w), n, w) : sum;
}

const float* CpuExecutor::probs(const Dist& d, const Few& few, int64_t c, int n, float* buf) const {
  const float* z = buf;
  if (!few.rest || c * kChunk >= d.row.V)
    std::fill(buf, buf + padded(n), 0.0f);
  else if (d.row.by_id)
    reader_.listed.probs(d, c, n, buf);
  else if (d.kind == Kind::kProbs)
    z = reader_.floats(d.row, c, n, 0.0f, buf);
  else
    rows_.probs(reader_.floats(d.row, c, n, -HUGE_VALF, buf), n, d.stats, buf);
  return with_few(d.row, few, c, n, few.rest ? 0 : 1, z, buf);
}

float CpuExecutor::mixed_weights(const Dist& p, const Mixture& mixture, int64_t c, float* w) const {
  const int n = chunk_size(p.row.V, c);
  float of_q[kChunk], of_score_row[kChunk];
  if (p.kind == Kind::kOneHot)
    probs(p, c, n, w);
  else if (std::isnan(plain_weights(p, c, w)))
    return NAN;
  const float* q = probs(mixture.q, c, n, of_q);
  if (mixture.capped) return rows_.cap(w, q, n, mixture.of_q, mixture.of_p, mixture.m, mixture.minus);
  // A one-hot score row is q itself. Without a score row the threshold is -inf, so any row of numbers will do, and q is
  // used.
  const Dist& score = mixture.score_row;
  const float* score_row = score.reads_row() ? reader_.floats(score.row, c, n, NAN, of_score_row) : q;
  return rows_.mix(w, q, score_row, n, mixture.threshold, mixture.m * mixture.of_p, mixture.kept(), -mixture.minus);
}

float CpuExecutor::weights(const Residual& residual, int64_t c, float* w) const {
  const int64_t begin = c * kChunk;
  const int n = chunk_size(residual.p.row.V, c);
  float sum = residual.mixture ? mixed_weights(residual.p, *residual.mixture, c, w) : plain_weights(residual.p, c, w),
        factor = 1;
  bool changed = false;  // whether w has changed since `sum`
  for (int64_t j = 0; j < residual.n; ++j) {
    if (sum == 0) return 0;  // there is nothing to subtract from: q's row need not be read
    const Subtraction& subtraction = residual.subtractions[j];
    factor *= subtraction.m;
    if (subtraction.q.kind == Kind::kNothing) continue;
    if (subtraction.q.kind == Kind::kOneHot) {
      if (subtraction.q.hot >= begin && subtraction.q.hot < begin + n) w[subtraction.q.hot - begin] = 0, changed = true;
      continue;
    }
    if (begin >= subtraction.q.row.V) continue;
    // q has no entry in this chunk, so nothing is subtracted. Only the last subtraction may be skipped for this: before
    // another one, its factor must be applied, and rounded, by itself.
    if (subtraction.q.row.by_id && j + 1 == residual.n && !ListedReader::reaches(*subtraction.q.row.ids, c)) continue;
    float buf[kChunk];
    const float* q = probs(subtraction.q, removed_by(residual.subtractions, j), c, n, buf);
    sum = std::isnan(sum) ? sum : rows_.subtract(w, q, n, factor, subtraction.s, subtraction.cap);
    factor = 1, changed = false;
  }
  return (changed || factor != 1) && sum > 0 ? rows_.scale(w, n, factor) : sum;
}

int64_t CpuExecutor::draw(const Residual& residual, double v) const {
  double total = 0;
  for (int64_t c = 0; c < chunks_; ++c) total += sum_[c];
  const double target = v * total;
  // If rounding keeps the running sum from exceeding the target, the last chunk with mass is used. draw_in() does the
  // same with ids.
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
  const Row& row = residual.p.row;
  if (!task_) return row.id_at(draw_in(residual, chunk, share));
  struct Drawn {
    int32_t within;
    float entry;  // the entry of p's row, likely to be needed next
  };
  const Drawn drawn = task_->value_of<Drawn>(task_->split.owner(chunk), [&] {
    const int64_t id = draw_in(residual, chunk, share);
    return Drawn{int32_t(id - chunk * kChunk), row ? reader_.entry(row, id) : 0};
  });
  const int64_t id = chunk * kChunk + drawn.within;
  if (row) task_->know(row, id, drawn.entry);
  return row.id_at(id);
}

// The place of the first entry of chunk c with mass whose running sum exceeds `share` of the chunk's sum
int64_t CpuExecutor::draw_in(const Residual& residual, int64_t c, double share) const {
  float w[kChunk];
  weights(residual, c, w);
  const int n = chunk_size(residual.p.row.V, c);
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += w[i];
  const double target = share * sum;  // of this sum: in this order, it may be rounded differently from sum_[c]
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

int64_t CpuExecutor::largest_finite(const Row& row) const {
  struct Best {
    float z = -HUGE_VALF;
    int32_t id = 0;
  };
  std::vector<Best> best(chunk_count(row.V));
  const auto best_of = [&](int64_t c) {
    float buf[kChunk];
    const float* z = reader_.floats(row, c, NAN, buf);
    Best best;
    for (int i = 0; i < chunk_size(row.V, c); ++i)
      if (z[i] > best.z && z[i] < HUGE_VALF) best = {z[i], int32_t(c * kChunk + i)};
    return best;
  };
  for_chunks(best.size(), best_of, [&](int64_t c, const Best& x) { best[c] = x; });
  Best all;
  for (const Best& x : best)
    if (x.z > all.z) all = x;
  return all.z > -HUGE_VALF ? all.id : -1;
}

}  // namespace specdec
