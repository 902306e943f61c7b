// SPDX-License-Identifier: Apache-2.0
// A pair of rows as probabilities side by side, for a search that passes over them several times.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "../core/row.h"
#include "simd_kernels.h"

namespace specdec {

// f(c) of every chunk, by one thread or by all.
template <class F>
void for_chunks(bool wide, int64_t chunks, const F& f) {
  if (!wide) {
    for (int64_t c = 0; c < chunks; ++c) f(c);
    return;
  }
  torch::stable::parallel_for(0, chunks, 8, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) f(c);
  });
}

// Kept by each thread from call to call: the pages of a fresh allocation would cost as much as the search.
struct RowPairRoom {
  int64_t size = 0;
  std::unique_ptr<float[]> p, q;  // [size], whole chunks

  static RowPairRoom& of_thread() {
    static thread_local RowPairRoom room;
    return room;
  }
};

// One of a thread is in use at a time.
class RowPair {
 public:
  PairMass masses(const Dist& p, const Dist& q, bool wide) {
    return masses(p, q, wide, [&](int64_t c, int n, float* out) { return fill(p, false, c, n, out); });
  }
  // Of what stands in the place of p: fill(c, n, out) writes chunk c of it and returns its sum, NaN if it is no law.
  template <class Fill>
  PairMass masses(const Dist& p, const Dist& q, bool wide, const Fill& fill_p) {
    if (!p.valid() || !q.valid()) return {NAN, NAN};
    const int64_t chunks = begin(std::max(p.row.V, q.row.V));
    for_chunks(wide, chunks, [&](int64_t c) {
      const int n = chunk_size(V_, c);
      parts_[c * kCandidates] = fill_p(c, n, room_.p.get() + c * kChunk);
      parts_[c * kCandidates + 1] = fill(q, true, c, n, room_.q.get() + c * kChunk);
    });
    PairMass mass{0, 0};
    for (int64_t c = 0; c < chunks; ++c) mass.p += parts_[c * kCandidates], mass.q += parts_[c * kCandidates + 1];
    return mass;
  }
  // Of the pair that masses() has seen last
  void clipped_sums(const float (&t)[kCandidates], bool wide, double (&out)[kCandidates]);

 private:
  int64_t begin(int64_t V);  // the number of chunks
  double fill(const Dist& d, bool draft, int64_t c, int n, float* out) const;

  const RowKernels& rows_ = rows();
  RowPairRoom& room_ = RowPairRoom::of_thread();
  int64_t V_ = 0;
  std::vector<double> parts_;  // [chunks, 4]: what was summed of each
};

}  // namespace specdec
