// SPDX-License-Identifier: Apache-2.0
// The lists of used ids that penalties read (UsedList in core/penalties.h), as a block reads them
#pragma once

#include "../core/penalties.h"
#include "thread_block.cuh"

namespace specdec {

SPECDEC_DEVICE int32_t id_at(const int32_t* ids, int i) { return ids[i]; }

// The index of the first of n ascending ids that is not less than v; n if there is none
template <class Ids>
SPECDEC_DEVICE int place_in(const Ids* ids, int n, int64_t v) {
  int first = 0;
#pragma unroll 1
  while (first < n) {
    const int middle = first + (n - first) / 2;
    if (id_at(ids, middle) < v)
      first = middle + 1;
    else
      n = middle;
  }
  return first;
}

// The number of ids in a list; -1 if the list is invalid. Called by all threads of a block.
SPECDEC_DEVICE int ids_in(const UsedList& list) {
  const int H = int(list.H);
  int n = 0;
  bool fine = true;
#pragma unroll 1
  for (int first = 0; first < H; first += kThreads) {
    const int j = first + int(threadIdx.x);
    fine &= j >= H || list.fine(j);
    n += __syncthreads_count(j < H && list.ids[j] >= 0);
  }
  return __syncthreads_and(fine) ? n : -1;
}

}  // namespace specdec
