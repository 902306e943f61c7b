// SPDX-License-Identifier: Apache-2.0
// Applies the view of a row to entries as they are read. cuda/views.cuh makes the views.
#pragma once

#include "device.cuh"

namespace specdec {

// The bits of a view's mask from id `first` on, to the end of its word
SPECDEC_HD uint32_t allowed_bits(const Seen& view, int first) {
  return first / 32 < int(view.W) ? view.words[first / 32] >> first % 32 : 0;
}
// Bit r of the result is set if the row's mask allows entry r of a thread's N, at id first + step_of(r), or if the row
// has no mask. A group's entries are adjacent, and their bits are in one word.
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

// x * y, rounded to a float. The compiler never fuses __fmul_rn with an addition. It would fuse the #else
// expression, since it turns a product of doubles that is rounded to float into a product of floats.
SPECDEC_HD float rounded_product(float x, float y) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(x, y);
#else
  return float(double(x) * double(y));
#endif
}

// Entry e of a used id after penalties
SPECDEC_HD float penalised(const Amounts& by, float e, int64_t count) {
  e = e > 0 ? e / by.repetition : rounded_product(e, by.repetition);
  if (count == 0) return e;
  e -= rounded_product(by.frequency, float(count));
  return e - by.presence;
}

// Whether the table of a view changes entry v. An entry that the mask forbids stays -inf.
SPECDEC_HD bool table_changes(const Seen& view, int v) {
  return (!view.words || allowed_bits(view, v) & 1) && view.table.uses(v);
}
// Entry v after the table's penalties, without bias and window; `lying` is its stored value.
SPECDEC_HD float entry_of_table(const Seen& view, int v, float lying) {
  const int32_t count = view.table.count(v);
  return count < 0 ? NAN : penalised(view.amounts, lying, count);
}

// Entry v under a view; `lying` is its stored value.
SPECDEC_HD_APART float seen_entry(const Seen& view, int64_t v, float lying) {
  if (view.invalid) return NAN;
  if (view.words && !(allowed_bits(view, int(v)) & 1)) return -HUGE_VALF;
  const int end = view.begins[v / Seen::kSpan + 1];
  for (int i = view.begins[v / Seen::kSpan]; i < end; ++i) {
    if (view.entries[i].id == v) return view.entries[i].value;
  }
  return view.table && view.table.uses(int(v)) ? entry_of_table(view, int(v), lying) : lying;
}

// Applies bias and penalties to the N entries of a thread, after load_lying() has applied the mask. Entry r has id
// begin + step_of(r). From `begin` on, the row has `left` entries. A group lies in one span, and the next group in the
// next span.
template <int N>
SPECDEC_DEVICE void see(const Row& row, int64_t begin, int left, float (&z)[N]) {
  static_assert(kLanes * kGroup == Seen::kSpan, "a warp's groups are a span");
  if (row.view()->invalid) {
#pragma unroll
    for (int r = 0; r < N; ++r) z[r] = step_of(r) < left ? NAN : z[r];
    return;
  }
  if (row.view()->table) {
#pragma unroll 1
    for (int r = 0; r < N; ++r) {
      const int v = int(begin) + step_of(r);
      const Seen& view = *opaque(row.view());  // opaque: otherwise its fields would occupy registers
      const bool changes = table_changes(view, v);
      const float e = changes ? entry_of_table(view, v, number_at(view.data, row.dtype, v)) : 0;
#pragma unroll
      for (int k = 0; k < N; ++k) z[k] = k == r && changes ? e : z[k];
    }
  }
  constexpr int kWidth = N < kGroup ? N : kGroup;
#pragma unroll
  for (int j = 0; j < N / kWidth; ++j) {
    const int first = int(begin) + step_of(j * kWidth), c = first / Seen::kSpan;
    const int32_t* const begins = row.view()->begins;
    const int end = begins[c + 1];
#pragma unroll 1
    for (int i = begins[c]; i < end; ++i) {
      const Seen::Entry seen = opaque(row.view())->entries[i];  // opaque: otherwise its address would occupy a register
      const int at = seen.id - first;
#pragma unroll
      for (int e = 0; e < kWidth; ++e) z[j * kWidth + e] = at == e ? seen.value : z[j * kWidth + e];
    }
  }
}

}  // namespace specdec
