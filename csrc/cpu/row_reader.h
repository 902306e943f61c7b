// SPDX-License-Identifier: Apache-2.0
// Reads rows on the CPU, and applies their views to what it reads. No other file accesses the memory of rows. A row is
// whole, or this process has some of its chunks (shards.h).
#pragma once

#include <algorithm>

#include "views.h"
#include "simd_kernels.h"

namespace specdec {

struct Split;

class RowReader {
 public:
  explicit RowReader(const Split* split = nullptr) : split_(split) {}

  const RowKernels& kernels = rows();

  // Entry v of a row, which this process must have
  float entry(const Row& row, int64_t v) const {
    const Changes changes = row.view ? changes_in(row.view, v, 1) : Changes();
    if (changes.empty) return -HUGE_VALF;
    float z = number_at(row.pointer(), row.dtype, place(row, v));
    if (changes) change(row.view, changes, v, 1, &z);
    return z;
  }

  // Chunk c in place, or a copy in buf [kChunk] if its view changes it or its size is not a multiple of kPad
  Entries chunk(const Row& row, int64_t c, float* buf) const {
    const int n = chunk_size(row.V, c);
    const Changes changes = row.view ? changes_in(row.view, c * kChunk, n) : Changes();
    return n == padded(n) && !changes ? at(row, c) : Entries(load(row, changes, c, n, n, -HUGE_VALF, buf));
  }

  // The first n entries of chunk c as floats; `pad` from the end of the row, or from id V, to a multiple of kPad
  const float* floats(const Row& row, int64_t c, int n, float pad, float* buf, int64_t V = INT64_MAX) const {
    const int m = int(std::clamp<int64_t>(std::min(V, row.V) - c * kChunk, 0, n));
    if (m > 0) return load(row, row.view ? changes_in(row.view, c * kChunk, m) : Changes(), c, m, n, pad, buf);
    std::fill(buf, buf + padded(n), pad);
    return buf;
  }
  const float* floats(const Row& row, int64_t c, float pad, float* buf) const {
    return floats(row, c, chunk_size(row.V, c), pad, buf);
  }

 private:
  // m entries of chunk c as the row's view changes them, and `pad` up to n. The result is in buf if it changes any.
  const float* load(const Row& row, const Changes& changes, int64_t c, int m, int n, float pad, float* buf) const {
    if (changes.empty) {  // the row is not read
      std::fill(buf, buf + m, -HUGE_VALF), std::fill(buf + m, buf + padded(n), pad);
      return buf;
    }
    const float* const z = kernels.load(at(row, c), m, n, pad, buf);
    if (!changes) return z;
    if (z != buf) std::copy(z, z + padded(n), buf);
    change(row.view, changes, c * kChunk, m, buf);
    if (!changes.masked) return buf;
    uint32_t words[kChunk / 32];
    mask_words(row.view, c * kChunk, words);
    kernels.mask(buf, m, words);
    std::fill(buf + m, buf + padded(n), pad);
    return buf;
  }
  int64_t place(const Row& row, int64_t v) const { return split_ ? v - first(row) : v; }
  int64_t first(const Row& row) const;  // the first id that this process has
  Entries at(const Row& row, int64_t c) const {
    const int64_t bytes = place(row, c * kChunk) * (row.dtype == kFloat32 ? 4 : 2);
    return {static_cast<const char*>(row.pointer()) + bytes, row.dtype};
  }

  const Split* split_;
};

}  // namespace specdec
