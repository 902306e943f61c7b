// SPDX-License-Identifier: Apache-2.0
// Applies penalties to entries of a row. Only ids that the request has used change.
#pragma once

#include <cstdint>

#include "../core/penalties.h"

namespace specdec {

// The used ids in a range of ids: places [first, last) of the request's list, and if `drafted` some of its window
struct Used {
  int64_t first = 0, last = 0;
  bool drafted = false;
  explicit operator bool() const { return first < last || drafted; }
};

// The used ids in [begin, begin + n)
Used used_ids(const View& view, int64_t begin, int n);

// Penalises the used ids in e, the n entries from id `begin` on.
void penalise(const View& view, const Used& used, int64_t begin, int n, float* e);

}  // namespace specdec
