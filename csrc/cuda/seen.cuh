// SPDX-License-Identifier: Apache-2.0
// What a view puts in the place of a row's entries: cuda/views.cuh finds it.
#pragma once

#include "device.cuh"

namespace specdec {

// Entry v, which lies there so
SPECDEC_HD float seen_entry(const Seen& view, int64_t v, float lying) {
  if (view.invalid) return NAN;
  const int end = view.begins[v / Seen::kSpan + 1];
  for (int i = view.begins[v / Seen::kSpan]; i < end; ++i) {
    if (view.entries[i].id == v) return view.entries[i].value;
  }
  return lying;
}

// Of a thread's N entries from `begin` on, `left` of the row, those that are seen otherwise than they lie. Neighbours
// lie in one span, and the next ones in the next.
template <int N>
SPECDEC_DEVICE void see(const Seen& view, int64_t begin, int left, float (&z)[N]) {
  static_assert(kLanes * kGroup == Seen::kSpan, "a warp's groups are a span");
  if (view.invalid) {
#pragma unroll
    for (int r = 0; r < N; ++r) z[r] = step_of(r) < left ? NAN : z[r];
    return;
  }
  constexpr int kWidth = N < kGroup ? N : kGroup;
#pragma unroll
  for (int j = 0; j < N / kWidth; ++j) {
    const int first = int(begin) + step_of(j * kWidth), c = first / Seen::kSpan;
    const int end = view.begins[c + 1];
#pragma unroll 1
    for (int i = view.begins[c]; i < end; ++i) {
      forget();  // the addresses: no register is free for them
      const Seen::Entry seen = view.entries[i];
      const int at = seen.id - first;
#pragma unroll
      for (int e = 0; e < kWidth; ++e) z[j * kWidth + e] = at == e ? seen.value : z[j * kWidth + e];
    }
  }
}

}  // namespace specdec
