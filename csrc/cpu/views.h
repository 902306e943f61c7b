// SPDX-License-Identifier: Apache-2.0
// Applies the view of a row (core/views.h) to the entries that row_reader.h reads
#pragma once

#include <cstdint>
#include <vector>

#include "../core/row.h"

namespace specdec {

// The changes that a view makes in a range of ids
struct Changes {
  // Indices into a sorted list
  struct Places {
    int64_t first = 0, last = 0;
    explicit operator bool() const { return first < last; }
  };
  Places bias, used;                   // in the bias list and in the list of used ids
  bool drafted = false;                // whether tokens of the window are in the range
  bool masked = false, empty = false;  // whether some, and whether all of the ids are forbidden
  bool listed = false;                 // the row has ids (listed_reader.h): each entry is changed by itself
  const uint32_t* in_mask = nullptr;   // the mask's words for a chunk; null: they are in `copied`
  uint32_t copied[kChunk / 32];        // if the mask ends in the chunk; words beyond it are 0

  Changes() {}  // `copied` is not initialised
  const uint32_t* words() const { return in_mask ? in_mask : copied; }
  bool values() const { return bias || used || drafted; }  // whether bias or penalties change entries
  explicit operator bool() const { return values() || masked || listed; }
};

// Sets `masked`, `empty` and, unless n is 1, the mask's words for the ids [begin, begin + n).
void look_at_mask(const View& view, int64_t begin, int n, Changes& changes);

// The changes in the ids [begin, begin + n)
Changes changes_in(const View& view, int64_t begin, int n);

// The index in a view's lists at which the ids of each chunk of a row start. A pass over all chunks finds these once
// instead of searching for each chunk.
class ChunkStarts {
 public:
  void find(const View& view, int64_t V);
  // The changes in chunk c, which has n ids
  Changes changes(const View& view, int64_t c, int n) const {
    Changes changes;
    if (biased_) changes.bias = {bias_[c], bias_[c + 1]};
    if (penalised_) changes.used = {used_[c], used_[c + 1]}, changes.drafted = drafted_[c];
    if (masked_) look_at_mask(view, c * kChunk, n, changes);
    return changes;
  }

 private:
  std::vector<int32_t> bias_, used_;  // [chunks + 1]
  std::vector<uint8_t> drafted_;      // [chunks]: whether tokens of the window are in it
  bool biased_ = false, penalised_ = false, masked_ = false;
};

// The largest of the changed entries, before and after the change, NaN aside
struct Peaks {
  float before = -HUGE_VALF, after = -HUGE_VALF;
};

// Applies bias and penalties, not the mask, to e, the n entries from id `begin` on. Returns the peaks of the entries
// that change. If an entry changes twice, its value after the first change may count in `before`.
Peaks change(const View& view, const Changes& changes, int64_t begin, int n, float* e);

// The entry of id v after the changes of the view, if there is one. read() returns the entry in memory; it is not
// called if the view forbids the id.
template <class Read>
float seen_entry(const View& view, int64_t v, const Read& read) {
  const Changes changes = view ? changes_in(view, v, 1) : Changes();
  if (changes.empty) return -HUGE_VALF;
  float e = read();
  if (changes) change(view, changes, v, 1, &e);
  return e;
}

}  // namespace specdec
