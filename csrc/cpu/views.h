// SPDX-License-Identifier: Apache-2.0
// Applies the view of a row to its entries. Only ids that have a bias, or that the request has used, change.
#pragma once

#include <cstdint>

#include "../core/views.h"

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
  explicit operator bool() const { return bias || used || drafted; }
};

// What changes in the ids [begin, begin + n)
Changes changes_in(const View& view, int64_t begin, int n);

// Changes e, the n entries from id `begin` on.
void change(const View& view, const Changes& changes, int64_t begin, int n, float* e);

}  // namespace specdec
