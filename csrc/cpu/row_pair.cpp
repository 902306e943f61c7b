// SPDX-License-Identifier: Apache-2.0
// CpuExecutor's sums over a pair of rows. The pair is stored as probabilities, since searches pass over it several
// times.
#include <algorithm>
#include <cmath>
#include <memory>

#include "row_executor.h"

namespace specdec {
namespace {

// Each thread keeps this memory between calls: the page faults of a new allocation would cost as much as the search.
thread_local struct {
  int64_t size = 0;
  std::unique_ptr<float[]> p, q;  // [size], whole chunks
} room;

}  // namespace

// Writes chunk c of a distribution as n probabilities. `draft`: as draft_prob() of them. Returns their sum; NaN if a
// probability row has NaN or +inf there.
double CpuExecutor::fill(const Dist& d, bool draft, int64_t c, int n, float* out) const {
  const float* z = probs(d, c, n, out);
  if (d.kind == Kind::kProbs) {
    if (rows_.chunk_max(z, padded(n), nullptr).bad) return NAN;
    draft ? rows_.draft(z, n, out) : rows_.clean(z, n, out);
  } else if (draft && d.kind == Kind::kLogits && d.stats.log_norm < 0) {
    rows_.draft(z, n, out);  // the row's stats are wrong: by its own, the largest entry has at most 1
  }
  return rows_.total(out, n);
}

double CpuExecutor::fill(const Residual& p, int64_t c, int n, float* out) const {
  if (!p.mixture) return fill(p.p, false, c, n, out);
  const int m = int(std::clamp<int64_t>(p.p.row.V - c * kChunk, 0, n));
  if (m > 0 && std::isnan(weights(p, c, out))) return NAN;
  std::fill(out + m, out + padded(n), 0.0f);
  return rows_.total(out, n);
}

PairMass CpuExecutor::masses(const Residual& p, const Dist& q) {
  if (!p.p.valid() || !q.valid()) return {NAN, NAN};
  pair_V_ = std::max(p.p.row.V, q.row.V);
  pair_sums_.resize(chunk_count(pair_V_));
  const int64_t size = int64_t(pair_sums_.size()) * kChunk;
  if (room.size < size) room.size = size, room.p.reset(new float[size]), room.q.reset(new float[size]);
  const auto fill_both = [&, of_p = room.p.get(), of_q = room.q.get()](int64_t c) {
    const int n = chunk_size(pair_V_, c);
    return PairMass{fill(p, c, n, of_p + c * kChunk), fill(q, true, c, n, of_q + c * kChunk)};
  };
  const auto take = [&](int64_t c, const PairMass& x) { pair_sums_[c] = {x.p, x.q}; };
  for_chunks(pair_sums_.size(), fill_both, take, sizeof(PairMass), true);
  PairMass mass{0, 0};
  for (const auto& [of_p, of_q, none, no_more] : pair_sums_) mass.p += of_p, mass.q += of_q;
  return mass;
}

void CpuExecutor::clipped_sums(const float (&t)[kCandidates], double (&out)[kCandidates]) {
  const auto sums_of = [&, p = room.p.get(), q = room.q.get()](int64_t c) {
    PairSums sums;
    rows_.clipped_sums(p + c * kChunk, q + c * kChunk, chunk_size(pair_V_, c), t, sums.data());
    return sums;
  };
  for_chunks(pair_sums_.size(), sums_of, [&](int64_t c, const PairSums& sums) { pair_sums_[c] = sums; });
  std::fill(out, out + kCandidates, 0.0);
  for (const PairSums& sums : pair_sums_)
    for (int m = 0; m < kCandidates; ++m) out[m] += sums[m];
}

}  // namespace specdec
