// SPDX-License-Identifier: Apache-2.0
// The ids of a draft row's entries, if entry j is not that of id j. A sparse row has a few entries, each with an id; in
// a mapped one, a table gives the target's id for each id of the draft's vocabulary. An entry without an id has no
// mass, and the masses of entries with one id add up.
#pragma once

#include <algorithm>
#include <memory>

#include "ints.h"
#include "macros.h"

namespace specdec {

// Those of one row
struct EntryIds {
  struct Place {
    int32_t id, at;
  };
  const Place* places = nullptr;  // [n]: the entries that have an id, by ascending id, then in the row's order
  int64_t n = 0, k = 0;
  Ints ids;              // [k]: the id of each entry; one outside [0, kIdsEnd) is none
  int64_t end = 1;       // the largest id + 1
  bool repeats = false;  // whether two entries have the same id
  bool ascends = true;   // whether the places ascend with the ids

  template <class F>
  void for_places(int64_t v, const F& f) const {
    const Place* const end = places + n;
    const auto below = [](const Place& place, int64_t v) { return place.id < v; };
    for (const Place* at = std::lower_bound(places, end, v, below); at < end && at->id == v; ++at) f(at->at);
  }
  int64_t of(int64_t at) const {
    const int64_t id = ids[at];
    return id >= 0 && id < kIdsEnd ? id : -1;
  }
};

// Those of all rows of a side
struct RowsIds {
  Ints ids;  // [..., k] as the rows lie; null: entry j is that of id j
  int64_t batch_stride = 0, row_stride = 0;
  bool is_map = false;  // one table for all rows
#ifndef SPECDEC_IN_CUDA
  std::shared_ptr<const EntryIds[]> rows;  // by position; [1] of a map. Set by binding/entry_ids.h.
#endif

  SPECDEC_HD explicit operator bool() const { return bool(ids); }
#ifndef SPECDEC_IN_CUDA
  const EntryIds* of(int64_t position) const { return ids ? rows.get() + (is_map ? 0 : position) : nullptr; }
#endif
};

}  // namespace specdec
