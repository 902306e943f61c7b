// SPDX-License-Identifier: Apache-2.0
// Applies the view of a row to its entries. Those of ids that have a bias, that the request has used or that its mask
// forbids change.
#pragma once

#include <cstdint>

#include "../core/row.h"

namespace specdec {

// The ids that change in a range of ids: places in the request's sorted bias list and in its list of used ids, and if
// `drafted` some tokens of its window
struct Changes {
  struct Places {
    int64_t first = 0, last = 0;
    explicit operator bool() const { return first < last; }
  };
  Places bias, used;
  bool drafted = false;
  bool masked = false, empty = false;  // whether some, and whether all of the ids are forbidden
  explicit operator bool() const { return bias || used || drafted || masked; }
};

// What changes in the ids [begin, begin + n)
Changes changes_in(const View& view, int64_t begin, int n);

// Writes the words of the view's mask for a chunk of ids from `begin` on. Those beyond the mask are 0.
void mask_words(const View& view, int64_t begin, uint32_t (&words)[kChunk / 32]);

// Changes e, the n entries from id `begin` on, but for the mask.
void change(const View& view, const Changes& changes, int64_t begin, int n, float* e);

}  // namespace specdec
