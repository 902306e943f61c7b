// SPDX-License-Identifier: Apache-2.0
#include "row_pair.h"

namespace specdec {

// Chunk c of a row as n probabilities; returns their sum, NaN if a probability row holds NaN or inf there.
double RowPair::fill(const Dist& d, bool draft, int64_t c, int n, float* out) const {
  const int64_t begin = c * kChunk;
  if (!d.row.data || d.kind == Kind::kOneHot || begin >= d.row.V) {
    std::fill(out, out + padded(n), 0.0f);
    if (d.kind == Kind::kOneHot && d.hot >= begin && d.hot < begin + n) out[d.hot - begin] = 1;
  } else {
    const bool logits = d.kind == Kind::kLogits;
    const float* z = rows_.load(d.row, begin, chunk_size(d.row.V, c), n, logits ? -HUGE_VALF : 0.0f, out);
    if (logits)
      rows_.probs(z, n, d.stats, out);
    else if (rows_.chunk_max(z, padded(n), nullptr).bad)
      return NAN;
    else
      draft ? rows_.draft(z, n, out) : rows_.clean(z, n, out);
  }
  return rows_.total(out, n);
}

int64_t RowPair::begin(int64_t V) {
  V_ = V;
  const int64_t chunks = chunk_count(V);
  if (room_.size < chunks * kChunk) {
    room_.size = chunks * kChunk;
    room_.p.reset(new float[room_.size]), room_.q.reset(new float[room_.size]);
  }
  parts_.resize(chunks);
  return chunks;
}

}  // namespace specdec
