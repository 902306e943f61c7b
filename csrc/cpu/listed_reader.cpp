// SPDX-License-Identifier: Apache-2.0
#include "listed_reader.h"

#include <algorithm>
#include <cmath>

namespace specdec {
namespace {

// Adds the entry x to the others of its id.
void add(const Row& row, float x, float& sum) {
  if (row.adds)
    sum += clean_prob(x);
  else if (sum == -HUGE_VALF || std::isnan(x))
    sum = x;
  else if (x != -HUGE_VALF)
    sum = std::max(sum, x) + std::log1p(std::exp(std::min(sum, x) - std::max(sum, x)));
}

}  // namespace

// Chunks are read in order, so the last place is a good guess.
ListedReader::Places ListedReader::places(const EntryIds& ids, int64_t begin, int64_t end) {
  static thread_local int64_t near = 0;
  const auto below = [](const Place& place, int64_t v) { return place.id < v; };
  const Place* const all = ids.places + ids.n;
  const Place* first = ids.places + std::min(near, ids.n);
  if ((first > ids.places && !below(first[-1], begin)) || (first < all && below(*first, begin)))
    first = std::lower_bound(ids.places, all, begin, below);
  const Place* last = first;
  while (last < all && last->id < end) ++last;
  near = last - ids.places;
  return {first, last};
}

float ListedReader::entry_of_id(const Row& row, int64_t v) const {
  float z = row.adds ? 0 : -HUGE_VALF;
  for (const Place& place : places(*row.ids, v, v + 1)) add(row, entry(row, place.at, v), z);
  return z;
}

void ListedReader::change(const Row& row, int64_t begin, int n, float* z) const {
  for (int i = 0; i < n; ++i) {
    const int64_t id = row.ids->of(begin + i);
    z[i] = id < 0 ? -HUGE_VALF : row.view ? changed_entry(row.view, id, z[i]) : z[i];
  }
}

const float* ListedReader::chunk(const Row& row, int64_t c, int m, int n, float pad, float* buf) const {
  std::fill(buf, buf + m, row.adds ? 0 : -HUGE_VALF);
  std::fill(buf + m, buf + padded(n), pad);
  for (const Place& place : places(*row.ids, c * kChunk, c * kChunk + m))
    add(row, entry(row, place.at, place.id), buf[place.id - c * kChunk]);
  return buf;
}

bool ListedReader::probs(const Dist& d, int64_t c, int n, float* out) const {
  std::fill(out, out + padded(n), 0.0f);
  Places left = places(*d.row.ids, c * kChunk, c * kChunk + n);
  const bool any = left.size() > 0;
  while (left.size() > 0) {
    alignas(64) float z[kChunk];
    const int m = int(std::min<int64_t>(left.size(), kChunk));
    for (int j = 0; j < m; ++j) z[j] = entry(d.row, left.first[j].at, left.first[j].id);
    if (d.kind == Kind::kProbs) {
      for (int j = 0; j < m; ++j) z[j] = clean_prob(z[j]);
    } else {
      std::fill(z + m, z + padded(m), -HUGE_VALF);
      kernels_.probs({z, z}, m, d.stats, z);
    }
    for (int j = 0; j < m; ++j) out[left.first[j].id - c * kChunk] += z[j];
    left.first += m;
  }
  return any;
}

}  // namespace specdec
