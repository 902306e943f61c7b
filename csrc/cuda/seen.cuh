// SPDX-License-Identifier: Apache-2.0
// Applies the view of a row to entries as they are read. cuda/views.cuh makes the views.
#pragma once

#include "device.cuh"

namespace specdec {

// The bits of a view's mask from id `first` on, to the end of its word
SPECDEC_HD uint32_t allowed_bits(const Seen& view, int first) {
  return first / 32 < int(view.W) ? view.words[first / 32] >> first % 32 : 0;
}
// Bit r of the result: whether the row's mask, if any, allows entry r of a thread's N, at id first + step_of(r). The
// entries of a group are adjacent, in one word.
template <int N>
SPECDEC_DEVICE uint32_t allowed_bits(const Row& row, int first) {
  static_assert(N <= 32, "one bit each");
  if (!row.is_seen() || !row.view()->words) return ~0u;
  constexpr int kWidth = N < kGroup ? N : kGroup;
  uint32_t bits = 0;
#pragma unroll
  for (int j = 0; j < N / kWidth; ++j)
    bits |= (allowed_bits(*row.view(), first + step_of(j * kWidth)) & ((1u << kWidth) - 1)) << j * kWidth;
  return bits;
}

// Entry v under a view, from its stored value
SPECDEC_HD float seen_entry(const Seen& view, int64_t v, float stored) {
  if (view.invalid) return NAN;
  if (view.words && !(allowed_bits(view, int(v)) & 1)) return -HUGE_VALF;
  const int end = view.begins[v / Seen::kSpan + 1];
  for (int i = view.begins[v / Seen::kSpan]; i < end; ++i) {
    if (view.entries[i].id == v) return view.entries[i].value;
  }
  return stored;
}

// Applies bias and penalties to the N entries of a thread; load_stored() has applied the mask. Entry r of the thread is
// entry begin + step_of(r) of the row, of which `left` entries exist from `begin` on. Each group lies in one span of
// the view, and the lane's next group lies in the next span.
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
      const Seen::Entry seen = opaque(row.view())->entries[i];  // opaque: else its address takes a register
      const int at = seen.id - first;
#pragma unroll
      for (int e = 0; e < kWidth; ++e) z[j * kWidth + e] = at == e ? seen.value : z[j * kWidth + e];
    }
  }
}

}  // namespace specdec
