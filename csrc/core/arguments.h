// SPDX-License-Identifier: Apache-2.0
// Arguments of ops as pointers and int64 strides, in elements. Host and device share this header, so it does not
// include torch.
#pragma once

#include "filters.h"
#include "ints.h"
#include "row.h"

namespace specdec {

// The output for tokens: int64 if `wide`, else int32
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

// How many rows or requests of padded buffers are present: the first `number`, or all if it is not given. The others
// are not read.
struct Present {
  Ints number;  // [1]
  SPECDEC_HD bool has(int64_t i) const { return !number || i < number[0]; }
  // How many of n are present
  SPECDEC_HD int64_t of(int64_t n) const {
    if (!number || number[0] >= n) return n;
    return number[0] > 0 ? number[0] : 0;
  }
};

// temperature, top_k, top_p, min_p and top_n_sigma of N rows or requests. Each is a tensor or one number for all.
struct Sampling {
  Floats temperature;
  Ints top_k;
  Floats top_p, min_p, top_n_sigma;
  Filters numbers;
  bool has_numbers = false;

  SPECDEC_HD bool has_tensors() const { return temperature || filter_tensors(); }
  SPECDEC_HD bool filter_tensors() const { return top_k || top_p || min_p || top_n_sigma; }
  SPECDEC_HD explicit operator bool() const { return has_numbers || has_tensors(); }
  SPECDEC_HD bool filters() const { return filter_tensors() || numbers.filter(); }  // whether a row may have a filter
  // The parameters of row or request i. kFiltered = false reads only the temperature: for rows known to have no filter.
  template <bool kFiltered = true>
  SPECDEC_HD Filters at(int64_t i) const {
    Filters f;
    f.temperature = temperature ? temperature[i] : numbers.temperature;
    if (!kFiltered) return f;
    f.top_k = top_k ? top_k[i] : numbers.top_k;
    f.top_p = top_p ? top_p[i] : numbers.top_p;
    f.min_p = min_p ? min_p[i] : numbers.min_p;
    f.top_n_sigma = top_n_sigma ? top_n_sigma[i] : numbers.top_n_sigma;
    return f;
  }
  SPECDEC_HD Filters operator[](int64_t i) const { return at(i); }
};

// Whether the rows of this thread's ops are spread over processes (cpu/shards.h). A row then has V columns of stride 0,
// all at the address of the first entry that this process holds.
#ifndef SPECDEC_IN_CUDA
inline constinit thread_local bool rows_over_ranks = false;
#else
constexpr bool rows_over_ranks = false;
#endif

// Rows in memory: [N, V], or [B, rows, V]
struct RowMemory {
  const void* data = nullptr;
  int64_t V = 0;
  int64_t batch_stride = 0, row_stride = 0;
  DType dtype = kFloat32;
  SPECDEC_HD explicit operator bool() const { return V > 0; }  // an empty tensor has V, but may have null data
  SPECDEC_HD Row at(int64_t b, int64_t i) const {
    const int64_t offset = (b * batch_stride + i * row_stride) * (dtype == kFloat32 ? 4 : 2);
    return {static_cast<const char*>(data) + offset, V, dtype};
  }
};

// Rows [N, V] with their views. Each row's window has `drafted` tokens, and the view includes all of them.
struct SeenRows : RowMemory {
  Views views;
  int64_t drafted = 0;
  RowsIds ids;
  // Row n with its entries in the order in which they are stored. On the CPU, the row also carries their ids.
  SPECDEC_HD Row at(int64_t b, int64_t n) const {
    Row row = RowMemory::at(b, n).seen(views, n, drafted, n);
#ifndef SPECDEC_IN_CUDA
    row.ids = ids.of(n);
#endif
    return row;
  }
#ifdef SPECDEC_IN_CUDA
  // Row n by id: entry v belongs to id v
  SPECDEC_HD Row of_ids(int64_t n) const {
    if constexpr (kReadsIds) {
      if (kAlwaysIds || ids.listed) return Row(ids.listed + n);
    }
    return at(0, n);
  }
#else
  // The CPU's executor looks up the ids of entries itself.
  Row of_ids(int64_t n) const { return at(0, n); }
#endif
};

// Row i of stats [rows, 4]
SPECDEC_HD RowStats stats_at(const float* stats, int64_t i) {
  return {stats[4 * i], stats[4 * i + 1], stats[4 * i + 2], stats[4 * i + 3]};
}

}  // namespace specdec
