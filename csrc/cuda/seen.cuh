// SPDX-License-Identifier: Apache-2.0
// Reads the entries of a row as its view changes them. cuda/views.cuh makes the views.
#pragma once

#include "device.cuh"

namespace specdec {

// Entry v under a view; `lying` is its stored value.
SPECDEC_HD_APART float seen_entry(const Seen& view, int64_t v, float lying) {
  if (view.invalid) return NAN;
  if (view.words && !(v / 32 < view.W && view.words[v / 32] >> v % 32 & 1)) return -HUGE_VALF;
  const int end = view.begins[v / Seen::kSpan + 1];
  for (int i = view.begins[v / Seen::kSpan]; i < end; ++i) {
    if (view.entries[i].id == v) return view.entries[i].value;
  }
  return lying;
}

// Replaces those of a thread's N entries that the view changes. Entry r is at begin + step_of(r); `left` entries of the
// row follow `begin`. The neighbours of a group lie in one span, and the next group in the next span.
template <int N>
SPECDEC_DEVICE void see(const Row& row, int64_t begin, int left, float (&z)[N]) {
  static_assert(kLanes * kGroup == Seen::kSpan, "a warp's groups are a span");
  if (row.view()->invalid) {
#pragma unroll
    for (int r = 0; r < N; ++r) z[r] = step_of(r) < left ? NAN : z[r];
    return;
  }
  constexpr int kWidth = N < kGroup ? N : kGroup;
#pragma unroll
  for (int j = 0; j < N / kWidth; ++j) {
    const int first = int(begin) + step_of(j * kWidth), c = first / Seen::kSpan;
    const int32_t* const begins = row.view()->begins;
    const int end = begins[c + 1];
#pragma unroll 1
    for (int i = begins[c]; i < end; ++i) {
      const Seen::Entry seen = opaque(row.view())->entries[i];  // opaque: no register is free for its address
      const int at = seen.id - first;
#pragma unroll
      for (int e = 0; e < kWidth; ++e) z[j * kWidth + e] = at == e ? seen.value : z[j * kWidth + e];
    }
  }
  if (!opaque(row.view())->words) return;
#pragma unroll
  for (int r = 0; r < N; ++r) {
    const int64_t v = begin + step_of(r);
    const Seen* const view = opaque(row.view());
    const bool allowed = v / 32 < view->W && view->words[v / 32] >> v % 32 & 1;
    z[r] = allowed || step_of(r) >= left ? z[r] : -HUGE_VALF;
  }
}

}  // namespace specdec
