// SPDX-License-Identifier: Apache-2.0
// Reads rows by id (Listed in core/entry_ids.h), which cuda/list_entries.cuh makes. The places of a row are its entries
// that have an id, sorted by id. A place holds the number of its id: that is the id itself if it is less than
// Listed::V, and V, V + 1, ... for the other ids, in order.
#pragma once

#include "device.cuh"

namespace specdec {

// The index of the first place whose number is at least v. A caller's map may hold wrong numbers, so the result is
// clamped.
SPECDEC_HD int first_place(const Listed& row, int v) {
  int first = 0, n = row.n;
  if (row.first) {
    if (v >= row.V) return n;
    first = row.first[v];
    return first < 0 ? 0 : first < n ? first : n;
  }
  while (first < n) {
    const int middle = first + (n - first) / 2;
    if (row.places[middle].id < v)
      first = middle + 1;
    else
      n = middle;
  }
  return first;
}

// Whether an id with a number in [begin, end) has an entry
SPECDEC_HD bool reaches(const Listed& row, int begin, int end) {
  const int i = first_place(row, begin);
  return i < row.n && row.places[i].id < end;
}

// The number of an id, or -1 if the id is V or more and has no entry
SPECDEC_HD int64_t number_of(const Listed* row, int64_t id) {
  if (id < row->V) return id;
  int first = first_place(*row, row->V), n = row->n;
  while (first < n) {
    const int middle = first + (n - first) / 2;
    if (row->of(row->places[middle].at) < id)
      first = middle + 1;
    else
      n = middle;
  }
  return first < row->n && row->of(row->places[first].at) == id ? row->places[first].id : -1;
}
// number_of() for a row by id, else the id itself
SPECDEC_HD int64_t number_in(const Row& row, int64_t id) { return row.is_listed() ? number_of(row.listed(), id) : id; }

// Calls f with each entry of the id that has number v.
template <class F>
SPECDEC_HD void for_entries(const Listed& row, int64_t v, const F& f) {
  if (v < 0) return;
  for (int i = first_place(row, int(v)); i < row.n && row.places[i].id == v; ++i) f(row.entry(row.places[i].at));
}

// log2(1 + 2^x) / rate
SPECDEC_HD float softened(float x, float rate) {
#if defined(__CUDA_ARCH__)
  return __fdividef(__log2f(1 + exp2f(x)), rate);  // compiles to no function call
#else
  return log2f(1 + exp2f(x)) / rate;
#endif
}

// The sum of two entries x and y of one id: of two probabilities, or for logits the logit whose weight is the sum of
// their weights. Inlined, since a call would cost registers.
SPECDEC_HD float joined(float x, float y, float scale, float cutoff, bool adds) {
  const float most = fmaxf(x, y), less = fminf(x, y), rate = scale * 1.4426950408889634f;
  const float sum = most + softened(2 * rate * (0.5f * less - 0.5f * most), rate);
  return adds ? x + y : !(y >= cutoff) ? x : !(x >= cutoff) ? y : sum;
}

// The entry of an id
SPECDEC_HD float listed_entry(const Listed& row, int64_t v, float scale, float cutoff) {
  float sum = row.adds ? 0 : -HUGE_VALF;
  bool any = false;
  for_entries(row, number_of(&row, v), [&](float z) {
    const float x = row.adds ? clean_prob(z) : z;
    sum = any ? joined(sum, x, scale, cutoff, row.adds) : x;
    any = true;
  });
  return sum;
}

// Turns stats that were made from the stored entries into those of the row by id. They differ only if the row is
// greedy: its stats hold the index of an entry, and the result holds the id of that entry.
SPECDEC_HD_APART RowStats stats_by_id(const Listed* row, RowStats stats) {
  if (stats.greedy(row->k)) stats.log_norm = float(clamped(row->of(int64_t(stats.log_norm)), kIdsEnd - 1));
  return stats;
}

// Loads the entries of a row by id that `at`, a GroupsOf or a RunOf, names: 0 or -inf where an id has none. Entries of
// one id add up; logits add up under these stats.
template <class At>
SPECDEC_DEVICE void load_listed(const Listed* row, const RowStats& stats, const At& at, float (&z)[At::kEntries]) {
  constexpr int N = At::kEntries, kWidth = N < kGroup ? N : kGroup;
  const float none = row->adds ? 0.0f : -HUGE_VALF;
#pragma unroll
  for (int r = 0; r < N; ++r) z[r] = none;
  if (!reaches(*row, int(at.begin()), int(at.begin()) + At::kSpan)) return;
#pragma unroll
  for (int j = 0; j < N; j += kWidth) {
    const int first = int(at.id(0)) + step_of(j);
    int last = -1;
    float sum = 0;
#pragma unroll 1
    for (int i = first_place(*opaque(row), first); i < opaque(row)->n; ++i) {
      const EntryIds::Place place = opaque(row)->places[i];
      const unsigned e = unsigned(place.id - first);
      if (e >= unsigned(kWidth)) break;
      float x = opaque(row)->entry(place.at);
      if (opaque(row)->adds) x = clean_prob(x);
      sum = last == int(e) ? joined(sum, x, stats.scale, stats.cutoff, opaque(row)->adds) : x;
      last = int(e);
#pragma unroll
      for (int r = 0; r < kWidth; ++r) z[j + r] = last == r ? sum : z[j + r];
    }
  }
}

}  // namespace specdec
