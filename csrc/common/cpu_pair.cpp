// SPDX-License-Identifier: Apache-2.0
#include "cpu_pair.h"

#include <algorithm>
#include <cmath>

namespace specdec {

// Chunk c of a row as n probabilities; returns their sum, NaN if a probability row holds NaN or inf there.
double CpuPair::fill(const Dist& d, bool draft, int64_t c, int n, float* out) const {
  const int64_t begin = c * kChunk;
  if (!d.row.data || d.kind == Kind::kOneHot || begin >= d.row.V) {
    std::fill(out, out + padded(n), 0.0f);
    if (d.kind == Kind::kOneHot && d.hot >= begin && d.hot < begin + n) out[d.hot - begin] = 1;
  } else {
    const bool logits = d.kind == Kind::kLogits;
    const float* z = rows_.load(d.row, begin, chunk_size(d.row.V, c), n, logits ? -HUGE_VALF : 0.0f, out);
    if (logits)
      rows_.probs(z, n, d.law, out);
    else if (rows_.scan(z, padded(n)).bad)
      return NAN;
    else
      draft ? rows_.draft(z, n, out) : rows_.clean(z, n, out);
  }
  return rows_.total(out, n);
}

PairMass CpuPair::masses(const Dist& p, const Dist& q, bool wide) {
  if (!p.valid() || !q.valid()) return {NAN, NAN};
  V_ = std::max(p.row.V, q.row.V);
  const int64_t chunks = chunk_count(V_);
  if (room_.size < chunks * kChunk) {
    room_.size = chunks * kChunk;
    room_.p.reset(new float[room_.size]), room_.q.reset(new float[room_.size]);
  }
  parts_.resize(chunks * kCandidates);
  for_chunks(wide, chunks, [&](int64_t c) {
    const int n = chunk_size(V_, c);
    parts_[c * kCandidates] = fill(p, false, c, n, room_.p.get() + c * kChunk);
    parts_[c * kCandidates + 1] = fill(q, true, c, n, room_.q.get() + c * kChunk);
  });
  PairMass mass{0, 0};
  for (int64_t c = 0; c < chunks; ++c) mass.p += parts_[c * kCandidates], mass.q += parts_[c * kCandidates + 1];
  return mass;
}

void CpuPair::unders(const float (&t)[kCandidates], bool wide, double (&out)[kCandidates]) {
  const int64_t chunks = chunk_count(V_);
  for_chunks(wide, chunks, [&](int64_t c) {
    rows_.unders(room_.p.get() + c * kChunk, room_.q.get() + c * kChunk, chunk_size(V_, c), t, &parts_[c * kCandidates]);
  });
  std::fill(out, out + kCandidates, 0.0);
  for (int64_t c = 0; c < chunks; ++c)
    for (int m = 0; m < kCandidates; ++m) out[m] += parts_[c * kCandidates + m];
}

}  // namespace specdec
