// SPDX-License-Identifier: Apache-2.0
// Entries of a row as a request sees it: core/penalties.h. A warp finds which ids of its chunk were used, and each lane
// reads its own of them once more.
#pragma once

#include <cuda_runtime.h>

#include "../core/row.h"

#define SPECDEC_DEVICE __device__ __forceinline__
// Called: seldom run, or where the caller has no registers to spare
#define SPECDEC_APART __device__ __attribute__((noinline)) inline

namespace specdec {

constexpr int kLanes = 32;
constexpr unsigned kFullWarp = ~0u;

// The list of a view's request. Its pads, -1, lie above all ids.
struct UsedList {
  const int32_t *ids, *counts;
  int H;

  SPECDEC_DEVICE explicit UsedList(const View& view) {
    const Penalties& p = *view.penalties;
    const int64_t s = p.list(view.request);
    ids = p.ids + s * p.ids_stride, counts = p.counts + s * p.counts_stride, H = int(p.H);
  }
  SPECDEC_DEVICE static bool below(int32_t id, int64_t v) { return int64_t(uint32_t(id)) < v; }

  // The first place whose id is not below v, in [first, last]
  SPECDEC_DEVICE int search(int64_t v, int first, int last) const {
#pragma unroll 1
    while (first < last) {
      const int middle = first + (last - first) / 2;
      if (below(ids[middle], v))
        first = middle + 1;
      else
        last = middle;
    }
    return first;
  }
  // The same of the whole list, by a warp
  SPECDEC_DEVICE int search(int64_t v) const {
    const int lane = threadIdx.x % kLanes;
    int first = 0, last = H;
#pragma unroll 1
    while (first < last) {
      const int step = (last - first + kLanes - 1) / kLanes, at = first + lane * step;
      const int n = __popc(__ballot_sync(kFullWarp, at < last && below(ids[at], v)));  // in front of the others
      if (n == 0) return first;
      const int behind = first + n * step;
      first = behind - step + 1;
      last = behind < last ? behind : last;
    }
    return first;
  }
};

// x * y, rounded before anything is done with it: no compiler fuses it with a difference.
SPECDEC_DEVICE float rounded_product(float x, float y) { return float(double(x) * double(y)); }

SPECDEC_DEVICE float penalised(const Amounts& by, float e, int64_t count) {
  e = e > 0 ? e / by.repetition : rounded_product(e, by.repetition);
  if (count == 0) return e;
  e -= rounded_product(by.frequency, float(count));
  return e - by.presence;
}

// Entry v of a row, whose place in the list of used ids is in [first, last].
SPECDEC_APART float seen_entry(const Seen* seen, DType dtype, int64_t v, int first, int last) {
  const float e = number_at(seen->data, dtype, v);
  if (seen->invalid) return NAN;
  const View view = seen->view;
  const Penalties& p = *view.penalties;
  const UsedList list(view);
  const int at = list.search(v, first, last < list.H ? last : list.H);
  const bool listed = at < list.H && list.ids[at] == v;
  int64_t count = 0;
#pragma unroll 1
  for (int64_t n = view.position; n > 0; n = p.before(view.request, n)) count += p.token(view.request, n) == v;
  if (!listed && count == 0) return e;
  return penalised(p.amounts(view.request), e, count + (listed ? list.counts[at] : 0));
}

// Of the ids that a thread holds, those that were used, as bits, and the places of the list among which they are
struct UsedIds {
  uint32_t own;
  int first, last;
};

// By all lanes of a warp, of n groups from id `begin` on
constexpr int kGroup = 8;
SPECDEC_APART UsedIds used_ids(const Seen* seen, int64_t begin, int n) {
  const int64_t end = begin + n * kLanes * kGroup;
  if (seen->invalid) return {~0u >> (kLanes - n * kGroup), 0, 0};
  const View view = seen->view;
  const Penalties& p = *view.penalties;
  const UsedList list(view);
  const int lane = threadIdx.x % kLanes;
  uint32_t own = 0;
  const auto add = [&](int64_t v) {
    const int at = int(v - begin), group = at / kGroup;
    if (group % kLanes == lane) own |= 1u << (group / kLanes * kGroup + at % kGroup);
  };
  const int first = list.search(begin);
  int last = first;
#pragma unroll 1
  while (true) {
    const int at = last + lane;
    const int32_t id = at < list.H ? list.ids[at] : -1;
    const unsigned here = __ballot_sync(kFullWarp, UsedList::below(id, end));
#pragma unroll 1
    for (unsigned left = here; left; left &= left - 1) add(__shfl_sync(kFullWarp, id, __ffs(int(left)) - 1));
    last += __popc(here);
    if (here != kFullWarp) break;
  }
#pragma unroll 1
  for (int64_t at = view.position; at > 0; at = p.before(view.request, at)) {
    const int64_t v = p.token(view.request, at);
    if (v >= begin && v < end) add(v);
  }
  return {own, first, last};
}

}  // namespace specdec
