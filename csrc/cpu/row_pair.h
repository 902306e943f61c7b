// SPDX-License-Identifier: Apache-2.0
// A pair of rows as probabilities side by side, for a search that passes over them several times.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <array>
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

// One of a thread is in use at a time. each(chunks, f, take) calls take(c, f(c)) of every chunk.
class RowPair {
 public:
  template <class Each>
  PairMass masses(const Dist& p, const Dist& q, const Each& each) {
    return masses(p, q, each, [&](int64_t c, int n, float* out) { return fill(p, false, c, n, out); });
  }
  // Of what stands in the place of p: fill(c, n, out) writes chunk c of it and returns its sum, NaN if it is no law.
  template <class Each, class Fill>
  PairMass masses(const Dist& p, const Dist& q, const Each& each, const Fill& fill_p) {
    if (!p.valid() || !q.valid()) return {NAN, NAN};
    const int64_t chunks = begin(std::max(p.row.V, q.row.V));
    const auto fill_both = [&](int64_t c) {
      const int n = chunk_size(V_, c);
      return PairMass{fill_p(c, n, room_.p.get() + c * kChunk), fill(q, true, c, n, room_.q.get() + c * kChunk)};
    };
    each(chunks, fill_both, [&](int64_t c, const PairMass& x) { parts_[c] = {x.p, x.q}; });
    PairMass mass{0, 0};
    for (int64_t c = 0; c < chunks; ++c) mass.p += parts_[c][0], mass.q += parts_[c][1];
    return mass;
  }
  // Of the pair that masses() has seen last
  template <class Each>
  void clipped_sums(const float (&t)[kCandidates], const Each& each, double (&out)[kCandidates]) {
    const auto sums_of = [&](int64_t c) {
      Sums sums;
      rows_.clipped_sums(room_.p.get() + c * kChunk, room_.q.get() + c * kChunk, chunk_size(V_, c), t, sums.data());
      return sums;
    };
    const int64_t chunks = chunk_count(V_);
    each(chunks, sums_of, [&](int64_t c, const Sums& sums) { parts_[c] = sums; });
    std::fill(out, out + kCandidates, 0.0);
    for (int64_t c = 0; c < chunks; ++c)
      for (int m = 0; m < kCandidates; ++m) out[m] += parts_[c][m];
  }

 private:
  int64_t begin(int64_t V);  // the number of chunks
  double fill(const Dist& d, bool draft, int64_t c, int n, float* out) const;

  const RowKernels& rows_ = rows();
  RowPairRoom& room_ = RowPairRoom::of_thread();
  int64_t V_ = 0;
  using Sums = std::array<double, kCandidates>;
  std::vector<Sums> parts_;  // [chunks]
};

}  // namespace specdec
