// SPDX-License-Identifier: Apache-2.0
// Plain views of the arguments: pointers and int64 strides, in elements. No torch here: host and device share them.
#pragma once

#include "filters.h"
#include "ints.h"
#include "row.h"

namespace specdec {

// Where tokens are written: int64, or int32.
struct TokensOut {
  void* data = nullptr;
  bool wide = true;
  SPECDEC_HD void put(int64_t i, int64_t token) const {
    if (wide)
      static_cast<int64_t*>(data)[i] = token;
    else
      static_cast<int32_t*>(data)[i] = int32_t(token);
  }
};

// How many rows or requests of padded buffers are there: those in front, all where no number is given. Of the others
// nothing is read.
struct Present {
  Ints number;  // [1]
  SPECDEC_HD bool has(int64_t i) const { return !number || i < number[0]; }
  SPECDEC_HD int64_t of(int64_t n) const {
    if (!number || number[0] >= n) return n;
    return number[0] > 0 ? number[0] : 0;
  }
};

// temperature, top_k, top_p and min_p of N rows or requests: each one's own, or numbers that serve all
struct Sampling {
  Floats temperature;
  Ints top_k;
  Floats top_p, min_p;
  Filters numbers;
  bool has_numbers = false;

  SPECDEC_HD bool has_tensors() const { return temperature || top_k || top_p || min_p; }
  SPECDEC_HD explicit operator bool() const { return has_numbers || has_tensors(); }
  SPECDEC_HD bool filters() const { return top_k || top_p || min_p || numbers.filter(); }  // some row may have one
  // What is known to filter nothing is a temperature.
  template <bool kFiltered = true>
  SPECDEC_HD Filters at(int64_t i) const {
    Filters f;
    f.temperature = temperature ? temperature[i] : numbers.temperature;
    if (!kFiltered) return f;
    f.top_k = top_k ? top_k[i] : numbers.top_k;
    f.top_p = top_p ? top_p[i] : numbers.top_p;
    f.min_p = min_p ? min_p[i] : numbers.min_p;
    return f;
  }
  SPECDEC_HD Filters operator[](int64_t i) const { return at(i); }
};

// Whether this thread's ops are of rows that are spread over processes: a tensor then has all V entries of each row in
// one place, where those lie that are here (cpu/shards.h).
#ifndef SPECDEC_IN_CUDA
inline constinit thread_local bool rows_over_ranks = false;
#else
constexpr bool rows_over_ranks = false;
#endif

// Where rows lie: [N, V], or [B, rows, V] with a stride of its own for each dimension.
struct RowMemory {
  const void* data = nullptr;
  int64_t V = 0;
  int64_t batch_stride = 0, row_stride = 0;
  DType dtype = kFloat32;
  SPECDEC_HD explicit operator bool() const { return V > 0; }  // no rows at all have no memory, but a vocabulary
  SPECDEC_HD Row at(int64_t b, int64_t i) const {
    const int64_t offset = (b * batch_stride + i * row_stride) * (dtype == kFloat32 ? 4 : 2);
    return {static_cast<const char*>(data) + offset, V, dtype};
  }
};

// [N, V], each row as it is seen after `drafted` tokens of its window.
struct SeenRows : RowMemory {
  Penalties penalties;
  int64_t drafted = 0;
  SPECDEC_HD Row at(int64_t b, int64_t n) const { return RowMemory::at(b, n).seen(penalties, n, drafted, n); }
};

SPECDEC_HD RowStats stats_at(const float* stats, int64_t i) {
  return {stats[4 * i], stats[4 * i + 1], stats[4 * i + 2], stats[4 * i + 3]};
}

}  // namespace specdec
