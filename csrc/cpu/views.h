// SPDX-License-Identifier: Apache-2.0
// Applies the view of a row to entries as row_reader.h reads them
#pragma once

#include <cstdint>

#include "../core/row.h"

namespace specdec {

// What changes in a range of ids
struct Changes {
  // Indices into a sorted list
  struct Places {
    int64_t first = 0, last = 0;
    explicit operator bool() const { return first < last; }
  };
  Places bias, used;                   // in the bias list, and in the list of used ids
  bool drafted = false;                // whether tokens of the window are in the range
  bool masked = false, empty = false;  // whether some, and whether all of the ids are forbidden
  explicit operator bool() const { return bias || used || drafted || masked; }
};

// What changes in the ids [begin, begin + n)
Changes changes_in(const View& view, int64_t begin, int n);

// Writes the mask's words for the chunk of ids that starts at `begin`. Words beyond the mask are 0.
void mask_words(const View& view, int64_t begin, uint32_t (&words)[kChunk / 32]);

// Applies bias and penalties, not the mask, to e, the n entries from id `begin` on.
void change(const View& view, const Changes& changes, int64_t begin, int n, float* e);

}  // namespace specdec
