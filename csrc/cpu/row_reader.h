// SPDX-License-Identifier: Apache-2.0
// The one place on the CPU that knows where a row's entries lie and what they are to who reads them: of whole rows, or
// of rows of which some chunks lie here (shards.h).
#pragma once

#include <algorithm>

#include "penalties.h"
#include "simd_kernels.h"

namespace specdec {

struct Split;

class RowReader {
 public:
  explicit RowReader(const Split* split = nullptr) : split_(split) {}

  const RowKernels& kernels = rows();

  // Entry v of a row, which lies here
  float entry(const Row& row, int64_t v) const {
    const float z = number_at(row.pointer(), row.dtype, place(row, v));
    return row.view ? penalised(row.view, v, z) : z;
  }

  // Chunk c where it lies, or a copy in buf [kChunk] where it does not end with a group of lanes.
  Entries chunk(const Row& row, int64_t c, float* buf) const {
    const int n = chunk_size(row.V, c);
    const bool in_place = n == padded(n) && !(row.view && is_used(row.view, c * kChunk, n));
    return in_place ? at(row, c) : Entries(floats(row, c, -HUGE_VALF, buf));
  }

  // n entries from the chunk's first on as floats, `pad` from the end of the row, or id V, to the end of a group
  const float* floats(const Row& row, int64_t c, int n, float pad, float* buf, int64_t V = INT64_MAX) const {
    const int m = int(std::clamp<int64_t>(std::min(V, row.V) - c * kChunk, 0, n));
    if (m > 0) return seen(row, c, m, n, kernels.load(at(row, c), m, n, pad, buf), buf);
    std::fill(buf, buf + padded(n), pad);
    return buf;
  }
  const float* floats(const Row& row, int64_t c, float pad, float* buf) const {
    return floats(row, c, chunk_size(row.V, c), pad, buf);
  }

 private:
  // The m entries z of chunk c, of n with their padding, as the row's request sees them: in buf where any differs
  static const float* seen(const Row& row, int64_t c, int m, int n, const float* z, float* buf) {
    if (!row.view || !is_used(row.view, c * kChunk, m)) return z;
    if (z != buf) std::copy(z, z + padded(n), buf);
    penalise(row.view, c * kChunk, m, buf);
    return buf;
  }
  int64_t place(const Row& row, int64_t v) const { return split_ ? v - first(row) : v; }
  int64_t first(const Row& row) const;  // id that lies here
  Entries at(const Row& row, int64_t c) const {
    const int64_t bytes = place(row, c * kChunk) * (row.dtype == kFloat32 ? 4 : 2);
    return {static_cast<const char*>(row.pointer()) + bytes, row.dtype};
  }

  const Split* split_;
};

}  // namespace specdec
