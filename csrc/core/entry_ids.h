// SPDX-License-Identifier: Apache-2.0
// Token ids of the entries of draft rows. In a row without ids, entry j belongs to token id j. A sparse row has a few
// entries, each with an id. In a mapped row, one table gives the target's id for each id of the draft's vocabulary. An
// entry without an id has no mass. If several entries have the same id, their masses add up.
#pragma once

#include <memory>

#include "dtype.h"
#include "ints.h"
#include "macros.h"

namespace specdec {

// Whether this translation unit reads rows with ids, and whether all its draft rows have ids (cuda/by_id.h)
#if !defined(SPECDEC_IN_CUDA) || defined(SPECDEC_CUDA_ON_CPU)
constexpr bool kReadsIds = true, kAlwaysIds = false;
#elif defined(SPECDEC_READS_IDS)
constexpr bool kReadsIds = true, kAlwaysIds = true;
#else
constexpr bool kReadsIds = false, kAlwaysIds = false;
#endif

// The id of entry `at`; -1: it has none
SPECDEC_HD int64_t id_of(const Ints& ids, int64_t at) {
  const int64_t id = ids[at];
  return id >= 0 && id < kIdsEnd ? id : -1;
}

// The ids of one row
struct EntryIds {
  // An id, and the index in the row of an entry that has it
  struct Place {
    int32_t id, at;
  };
  struct Places {
    const Place *first, *last;
    const Place* begin() const { return first; }
    const Place* end() const { return last; }
    int64_t size() const { return last - first; }
  };
  const Place* places = nullptr;  // [n]: the entries that have an id, by ascending id, then in the row's order
  int64_t n = 0, k = 0;
  Ints ids;              // [k]: as the caller gave them; read with id_of()
  int64_t end = 1;       // the largest id + 1; 1 if there is no id
  bool repeats = false;  // whether two entries have the same id
  bool ascends = true;   // whether sorting by id keeps the order of the row

  // The places whose ids are in [begin, end) (cpu/listed_reader.cpp)
  Places between(int64_t begin, int64_t end) const;
};

#ifdef SPECDEC_IN_CUDA
// The ids of one row in CUDA. An earlier launch fills this (cuda/list_entries.cuh). Ids of V or more are renumbered V,
// V + 1, ... in their order, so that sums have at most V + k terms; `places` has the new numbers. V is the target's
// vocabulary; for a map, that of the map. In sample and row_stats it is 2^24, so no id is renumbered.
struct Listed {
  const void* stored;             // Row::pointer() of the row without ids (Row::as_stored)
  const void* data;               // [k] of dtype: the entries of that row, as its view changes them
  const EntryIds::Place* places;  // [n]
  const int32_t* first;           // of a map: [V + 1], the first place of each id; null: search `places`
  const int32_t* repeats;         // [1]: whether two entries have the same id
  Ints ids;                       // [k]
  int32_t n, k, V, end;           // end: the largest id + 1, after renumbering
  DType dtype;
  bool adds;  // true for probabilities: entries of one id are added; false for logits: their weights are added

  SPECDEC_HD int64_t of(int64_t at) const { return id_of(ids, at); }
  SPECDEC_HD bool is_at(int64_t id, int64_t at) const { return at < k && of(at) == id; }
  SPECDEC_HD float entry(int64_t at) const { return number_at(data, dtype, clamped(at, k - 1)); }
};
#endif

// The ids of all rows of one side
struct RowsIds {
  Ints ids;  // [..., k]; of a map: its packed numbers (binding/entry_ids.h); null: entry j belongs to id j
  int64_t batch_stride = 0, row_stride = 0;
  bool is_map = false;  // one table for all rows
  int64_t V = 0;        // of a map: the number of the target's ids
#ifndef SPECDEC_IN_CUDA
  std::shared_ptr<const EntryIds[]> rows;  // by position; [1] of a map. Set by binding/entry_ids.h.
#else
  const Listed* listed = nullptr;  // [positions of this side], written by cuda/list_entries.cuh
#endif

  SPECDEC_HD explicit operator bool() const { return bool(ids); }
  // An upper bound on the number of ids in sums over a row of k entries. `all`: the number of the target's ids.
  SPECDEC_HD int64_t most(int64_t all, int64_t k) const { return !ids ? k : !is_map ? all + k : V > k ? V : k; }
#ifndef SPECDEC_IN_CUDA
  const EntryIds* of(int64_t position) const { return ids ? rows.get() + (is_map ? 0 : position) : nullptr; }
#else
  // The ids of a row of k entries, given the offset of the row's ids in elements
  SPECDEC_HD Ints at(int64_t offset, int64_t k) const {
    const char* const data = static_cast<const char*>(ids.data);
    if (is_map) return {data + 2 * k * sizeof(int32_t), 1, false};
    return {data + offset * (ids.wide ? 8 : 4), ids.stride, ids.wide};
  }
#endif
};

}  // namespace specdec
