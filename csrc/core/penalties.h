// SPDX-License-Identifier: Apache-2.0
// Penalties on tokens that a request has used before, in its prompt or its output
#pragma once

#include <cmath>
#include <memory>

#include "ints.h"

namespace specdec {

// The strengths of the penalties; 1, 0, 0 if they are off
struct Amounts {
  float repetition, frequency, presence;
  SPECDEC_HD bool any() const { return repetition != 1 || frequency != 0 || presence != 0; }
};

struct UsedList;

// The penalties of B requests, and the S histories that they read. A history holds the tokens that a request has used,
// as a list or a table. A list has distinct ids in ascending order and their counts in the output, and is padded with
// -1. A table has the counts of all ids below H, and a bit for each id of the prompt.
struct Penalties {
  Floats repetition, frequency, presence;  // [B]; where one is null, `numbers` serves all requests
  Amounts numbers{1, 0, 0};
  const int32_t *ids = nullptr, *counts = nullptr;  // [S, H]; `ids` is null if the histories are tables
  const uint32_t* prompt_bits = nullptr;            // [S, ceil(H / 32)], for tables only
  int64_t S = 0, H = 0, ids_stride = 0, counts_stride = 0, bits_stride = 0;
  Ints row;  // [B], the index of each request's history; null: history b is request b's
#ifndef SPECDEC_IN_CUDA
  std::shared_ptr<const UsedList[]> lists;  // [S]: tables converted to lists by binding/used_tables.h
#endif

  SPECDEC_HD explicit operator bool() const { return counts != nullptr; }
  SPECDEC_HD Amounts amounts(int64_t b) const {
    return {repetition ? repetition[b] : numbers.repetition, frequency ? frequency[b] : numbers.frequency,
            presence ? presence[b] : numbers.presence};
  }
  SPECDEC_HD int64_t history(int64_t b) const { return row ? row[b] : b; }
  // Whether a request's amounts and the index of its history are valid. For GPU tensors, the host cannot check this.
  SPECDEC_HD bool fine(int64_t b) const {
    const Amounts x = amounts(b);
    const auto finite = [](float y) { return fabsf(y) < HUGE_VALF; };
    const int64_t s = history(b);
    return x.repetition > 0 && finite(x.repetition) && finite(x.frequency) && finite(x.presence) && s >= 0 && s < S;
  }
};

// A list of used ids, padded at the end with -1. In searches, -1 counts as larger than every id.
struct UsedList {
  const int32_t *ids = nullptr, *counts = nullptr;
  int64_t H = 0;

  UsedList() = default;
  SPECDEC_HD UsedList(const int32_t* ids, const int32_t* counts, int64_t H) : ids(ids), counts(counts), H(H) {}
  // History s of the penalties, with s in [0, S). In CUDA it must be a list.
  SPECDEC_HD UsedList(const Penalties& p, int64_t s)
      : UsedList(p.ids + s * p.ids_stride, p.counts + s * p.counts_stride, p.H) {
#ifndef SPECDEC_IN_CUDA
    if (p.lists) *this = p.lists[s];
#endif
  }
  // Whether entry j of `ids` and `counts` is valid. No test of a value branches, so checking a list is cheap compared
  // with reading a row.
  SPECDEC_HD bool fine(int64_t j) const { return ascends(j) & counted(j); }
  SPECDEC_HD bool ascends(int64_t j) const {
    return (ids[j] == -1) | (j == 0 ? ids[0] >= 0 : (ids[j - 1] >= 0) & (ids[j - 1] < ids[j]));
  }
  SPECDEC_HD bool counted(int64_t j) const { return (ids[j] == -1) | (counts[j] >= 0); }
};

// A table of used ids, all below H. A negative count is invalid.
struct UsedTable {
  const int32_t* counts;
  const uint32_t* prompt_bits;
  int H;

  // Table s of the penalties, with s in [0, S), cut to the ids below V
  SPECDEC_HD UsedTable(const Penalties& p, int64_t s, int64_t V)
      : counts(p.counts + s * p.counts_stride),
        prompt_bits(p.prompt_bits + s * p.bits_stride),
        H(int(p.H < V ? p.H : V)) {}
  SPECDEC_HD int32_t count(int v) const { return v < H ? counts[v] : 0; }
  SPECDEC_HD bool uses(int v) const { return v < H && (counts[v] != 0 || prompt_bits[v / 32] >> v % 32 & 1); }
};

}  // namespace specdec
