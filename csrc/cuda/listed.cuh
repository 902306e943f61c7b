// SPDX-License-Identifier: Apache-2.0
// Reads rows by id (Listed in core/entry_ids.h). cuda/list_entries.cuh makes them.
#pragma once

#include "device.cuh"

namespace specdec {

// The first place of an id's number that is not less than v. The numbers of a caller's map may be wrong, so the result
// is clamped.
SPECDEC_HD int first_place(const Listed& row, int64_t v) {
  if (row.first) return v < row.V ? int(clamped(row.first[v], row.n)) : row.n;
  int first = 0, n = row.n;
#pragma unroll 1
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
SPECDEC_HD bool reaches(const Listed& row, int64_t begin, int64_t end) {
  const int i = first_place(row, begin);
  return i < row.n && row.places[i].id < end;
}

// The number of an id: the id itself, if the target has it. -1: it has no entry.
SPECDEC_HD_APART int64_t number_of(const Listed* row, int64_t id) {
  if (id < row->V) return id;
  int first = first_place(*row, row->V), n = row->n;
#pragma unroll 1
  while (first < n) {
    const int middle = first + (n - first) / 2;
    if (row->of(row->places[middle].at) < id)
      first = middle + 1;
    else
      n = middle;
  }
  return first < row->n && row->of(row->places[first].at) == id ? row->places[first].id : -1;
}
// The number of an id under any row
SPECDEC_HD int64_t number_in(const Row& row, int64_t id) { return row.is_listed() ? number_of(row.listed(), id) : id; }

// Calls f with each entry of an id, by its number.
template <class F>
SPECDEC_HD void for_entries(const Listed& row, int64_t v, const F& f) {
  if (v < 0) return;
#pragma unroll 1
  for (int i = first_place(row, v); i < row.n && row.places[i].id == v; ++i) f(row.entry(row.places[i].at));
}

// What two entries of one id add up to: a probability, or a logit that has the sum of their weights under these stats.
SPECDEC_HD_APART float joined(float x, float y, RowStats stats, bool adds) {
  if (adds) return x + y;
  if (!(y >= stats.cutoff)) return x;
  if (!(x >= stats.cutoff)) return y;
  const float most = fmaxf(x, y), less = fminf(x, y);
  return most + log1pf(expf(scaled(less, most, stats.scale))) / stats.scale;
}

// An entry by id, as a logit at T = 1 without filters
SPECDEC_HD float listed_entry(const Listed& row, int64_t v) {
  const RowStats plain{1, -FLT_MAX, 0, 0};
  float sum = row.adds ? 0 : -HUGE_VALF;
  for_entries(row, number_of(&row, v),
              [&](float z) { sum = joined(sum, row.adds ? clean_prob(z) : z, plain, row.adds); });
  return sum;
}

// The probability of an id, or its ln
SPECDEC_HD double listed_prob(const Listed& row, const RowStats& stats, bool log, int64_t v) {
  double sum = 0, last = 0;
  int n = 0;
  for_entries(row, number_of(&row, v), [&](float z) {
    last = row.adds ? double(clean_prob(z)) : stats.log_prob(z);
    sum += row.adds ? last : exp(last);
    ++n;
  });
  if (!log) return sum;
  return n == 1 && !row.adds ? last : ::log(sum);  // exp() would lose a small one
}

// The id of entry `at`, for stats of a greedy row, which were made as its entries lie
SPECDEC_HD_APART RowStats stats_by_id(const Listed* row, RowStats stats) {
  if (stats.greedy(row->k)) stats.log_norm = float(clamped(row->of(int64_t(stats.log_norm)), kIdsEnd - 1));
  return stats;
}

// The entries that `at`, a GroupsOf or a RunOf, names, of a row by id: 0 or -inf where an id has none. Those of one id
// add up, as logits under these stats.
template <class At>
SPECDEC_DEVICE void load_listed(const Listed* row, const RowStats& stats, const At& at, float (&z)[At::kEntries]) {
  constexpr int N = At::kEntries, kWidth = N < kGroup ? N : kGroup;
#pragma unroll
  for (int r = 0; r < N; ++r) z[r] = row->adds ? 0.0f : -HUGE_VALF;
  if (!reaches(*row, at.begin(), at.begin() + At::kSpan)) return;
#pragma unroll
  for (int j = 0; j < N / kWidth; ++j) {
    const int64_t first = at.id(j * kWidth);
    int last = -1;
    float sum = 0;
#pragma unroll 1
    for (int i = first_place(*row, first); i < row->n; ++i) {
      const EntryIds::Place place = opaque(row)->places[i];
      const int64_t e = place.id - first;
      if (e < 0 || e >= kWidth) break;
      float x = row->entry(place.at);
      if (row->adds) x = clean_prob(x);
      sum = last == int(e) ? joined(sum, x, stats, row->adds) : x;
      last = int(e);
#pragma unroll
      for (int r = 0; r < kWidth; ++r) z[j * kWidth + r] = last == r ? sum : z[j * kWidth + r];
    }
  }
}

}  // namespace specdec
