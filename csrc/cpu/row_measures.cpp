// SPDX-License-Identifier: Apache-2.0
// CpuExecutor's measures of valid rows: the confidence of one row, and the distance between two
#include <algorithm>
#include <cmath>

#include "row_executor.h"

namespace specdec {
double CpuExecutor::entropy(const Dist& d) const {
  if (d.kind == Kind::kOneHot) return 0;
  if (const double* h = known(d)) return *h;
  if (d.kind == Kind::kProbs ? !(largest_prob(d) > 0) : !d.valid()) return NAN;
  const bool logits = d.kind == Kind::kLogits && !d.row.repeats();
  const double total = total_of(chunk_count(d.row.V), [&](int64_t c) {
    if (d.row.repeats()) {
      const int n = chunk_size(d.row.V, c);
      float p[kChunk];
      reader_.listed.probs(d, c, n, p);
      return rows_.prob_entropy(p, n);
    }
    if (logits && has_peaks(d.row) && max_[c] < d.stats.cutoff) return 0.0f;
    const int n = chunk_size(d.row.V, c);
    float buf[kChunk];
    const float* z = reader_.floats(d.row, c, logits ? -HUGE_VALF : 0.0f, buf);
    return logits ? rows_.entropy(z, n, d.stats) : rows_.prob_entropy(z, n);
  });
  return logits ? d.stats.log_norm + total * std::exp(-double(d.stats.log_norm)) : total;
}

PairGap CpuExecutor::gap(const Dist& p, const Dist& q) {
  if (p.kind != Kind::kLogits || q.kind != Kind::kLogits || q.row.repeats()) {
    const PairMass mass = masses(p, q);
    const float t[kCandidates] = {1, 1, 1, 1};
    double clipped_sums[kCandidates];
    this->clipped_sums(t, clipped_sums);
    return {clipped_sums[0], std::max(mass.p - clipped_sums[0], 0.0), entropy(p), entropy(q)};
  }
  const int64_t V = std::max(p.row.V, q.row.V), chunks = chunk_count(V);
  std::vector<GapSums> parts(chunks);
  const auto gap_of = [&](int64_t c) {
    float of_p[kChunk], of_q[kChunk];
    const int n = chunk_size(V, c);
    return rows_.gap(reader_.floats(p.row, c, n, -HUGE_VALF, of_p), reader_.floats(q.row, c, n, -HUGE_VALF, of_q), n,
                     p.stats, q.stats);
  };
  for_chunks(chunks, gap_of, [&](int64_t c, const GapSums& x) { parts[c] = x; });
  PairGap gap{0, 0, p.stats.log_norm, q.stats.log_norm};
  for (const GapSums& x : parts)
    gap.tv += x.tv, gap.overlap += x.overlap, gap.entropy_p += x.surprise_p, gap.entropy_q += x.surprise_q;
  return gap;
}

void CpuExecutor::expect_gap(const Dist& p, const Dist& q) {
  if (p.kind != Kind::kLogits || q.kind != Kind::kLogits || q.row.repeats() || (known(p) && known(q))) return;
  const PairGap both = gap(p, q);
  remember(p, both.entropy_p), remember(q, both.entropy_q);
  tv_of_[0] = p, tv_of_[1] = q, tv_ = both.tv;
}

double CpuExecutor::tv(const Dist& p, const Dist& q) {
  if (same(tv_of_[0], p) && same(tv_of_[1], q)) return tv_;
  return p.kind == Kind::kLogits && q.kind == Kind::kLogits ? gap(p, q).tv : sum(p, q);
}

double CpuExecutor::largest_prob(const Dist& d) const {
  const Row& row = d.row;
  std::vector<float> largest(chunk_count(row.V));
  const auto largest_of = [&](int64_t c) {
    float buf[kChunk];
    const int n = chunk_size(row.V, c);
    const bool logits = d.kind == Kind::kLogits;  // then the row has several entries of one id, which add up
    if (logits) reader_.listed.probs(d, c, n, buf);
    const ChunkMax s = rows_.chunk_max(logits ? buf : reader_.floats(row, c, 0.0f, buf), padded(n), nullptr);
    return s.bad ? NAN : s.max;
  };
  for_chunks(largest.size(), largest_of, [&](int64_t c, float x) { largest[c] = x; });
  double all = 0;
  for (const float x : largest) {
    if (std::isnan(x)) return NAN;
    all = std::max<double>(all, x);
  }
  return all > 0 ? all : NAN;
}

int64_t CpuExecutor::above(const Row& row, float least) const {
  return int64_t(total_of(chunk_count(row.V), [&](int64_t c) {
    if (has_peaks(row) && max_[c] <= least) return 0;
    float buf[kChunk];
    const int n = chunk_size(row.V, c);
    return rows_.above(reader_.floats(row, c, -HUGE_VALF, buf), n, least);
  }));
}

double CpuExecutor::deferred(const Mixture& mixture, int64_t V) const {
  const Dist& q = mixture.q;
  if (q.kind == Kind::kOneHot) return q.hot < V && mixture.keeps(q.hot) ? 0 : 1;
  return total_of(chunk_count(q.row.V), [&](int64_t c) {
    const int n = chunk_size(q.row.V, c);
    const bool all = mixture.score_row.kind == Kind::kNothing;
    if (all && c * kChunk + n <= V) return 0.0f;
    float of_q[kChunk], of_score_row[kChunk];
    const float* y = probs(q, c, n, of_q);
    if (all) {  // q is used as the score row, with NaN from id V on: all ids < V are kept
      std::copy(y, y + padded(n), of_score_row);
      std::fill(of_score_row + std::max<int64_t>(V - c * kChunk, 0), of_score_row + padded(n), NAN);
      return rows_.deferred(y, of_score_row, n, -HUGE_VALF);
    }
    return rows_.deferred(y, reader_.floats(mixture.score_row.row, c, n, NAN, of_score_row, V), n, mixture.threshold);
  });
}

}  // namespace specdec
