// SPDX-License-Identifier: Apache-2.0
#include "listed_reader.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace specdec {
namespace {

// Adds the entry x to `sum`, the sum of the other entries of its id. Logits are added as weights: ln(e^sum + e^x).
void add(const Row& row, float x, float& sum) {
  if (row.adds)
    sum += clean_prob(x);
  else if (sum == -HUGE_VALF || std::isnan(x))
    sum = x;
  else if (x != -HUGE_VALF)
    sum = std::max(sum, x) + std::log1p(std::exp(std::min(sum, x) - std::max(sum, x)));
}

}  // namespace

float ListedReader::entry(const Row& row, int64_t at, int64_t id) {
  if (id < 0) return -HUGE_VALF;
  return seen_entry(row.view, id, [&] { return number_at(row.pointer(), row.dtype, at); });
}

// Chunks are read in order, so the search starts at the place where the last call ended.
EntryIds::Places EntryIds::between(int64_t begin, int64_t end) const {
  static thread_local int64_t near = 0;
  const auto below = [](const Place& place, int64_t v) { return place.id < v; };
  const Place* const all = places + n;
  const Place* first = places + std::min(near, n);
  if ((first > places && !below(first[-1], begin)) || (first < all && below(*first, begin)))
    first = std::lower_bound(places, all, begin, below);
  int64_t step = 1;  // doubles until it is past the last place of the ids below `end`
  while (step < all - first && below(first[step - 1], end)) step *= 2;
  const Place* const last = std::lower_bound(first + step / 2, first + std::min(step, all - first), end, below);
  near = last - places;
  return {first, last};
}

float ListedReader::entry_of_id(const Row& row, int64_t v) const {
  float z = row.adds ? 0 : -HUGE_VALF;
  for (const Place& place : row.ids->between(v, v + 1)) add(row, entry(row, place.at, v), z);
  return z;
}

void ListedReader::change(const Row& row, int64_t begin, int n, float* z) const {
  for (int i = 0; i < n; ++i) {
    const int64_t id = row.id_at(begin + i);
    z[i] = id < 0 ? -HUGE_VALF : seen_entry(row.view, id, [&] { return z[i]; });
  }
}

const float* ListedReader::chunk(const Row& row, int64_t c, int m, int n, float pad, float* buf) const {
  std::fill(buf, buf + m, row.adds ? 0 : -HUGE_VALF);
  std::fill(buf + m, buf + padded(n), pad);
  for (const Place& place : row.ids->between(c * kChunk, c * kChunk + m))
    add(row, entry(row, place.at, place.id), buf[place.id - c * kChunk]);
  return buf;
}

// Returns the entries at m places. They are returned in place if the row has no view and they are neighbours in memory,
// with enough entries after them. Otherwise they are in buf [padded(m)], with -inf after them.
Entries ListedReader::gather(const Row& row, const Place* places, int m, float* buf) const {
  const int64_t at = places[0].at;
  const int size = row.dtype == kFloat32 ? 4 : 2;
  const char* const data = static_cast<const char*>(row.pointer());
  std::fill(buf + m, buf + padded(m), -HUGE_VALF);
  if (row.view) {
    for (int j = 0; j < m; ++j) buf[j] = entry(row, places[j].at, places[j].id);
  } else if (row.ids->ascends && places[m - 1].at == at + m - 1 && at + padded(m) <= row.ids->k) {
    return {data + at * size, row.dtype};
  } else if (row.dtype == kFloat32) {
    for (int j = 0; j < m; ++j) buf[j] = reinterpret_cast<const float*>(data)[places[j].at];
  } else if (row.dtype == kBFloat16) {
    for (int j = 0; j < m; ++j)
      buf[j] = std::bit_cast<float>(uint32_t(reinterpret_cast<const uint16_t*>(data)[places[j].at]) << 16);
  } else {
    for (int j = 0; j < m; ++j) buf[j] = number_at(data, kFloat16, places[j].at);
  }
  return Entries::copied(buf);
}

void ListedReader::probs(const Dist& d, int64_t c, int n, float* out) const {
  std::fill(out, out + padded(n), 0.0f);
  out -= c * kChunk;
  EntryIds::Places left = d.row.ids->between(c * kChunk, c * kChunk + n);
  while (left.size() > 0) {
    alignas(64) float w[kChunk];
    const int m = int(std::min<int64_t>(left.size(), kChunk));
    const Entries z = gather(d.row, left.first, m, w);
    if (d.kind == Kind::kProbs)
      for (int j = 0; j < m; ++j) w[j] = clean_prob(number_at(z.data, z.dtype, j));
    else
      kernels_.probs(z, m, d.stats, w);
    if (d.row.ids->repeats)
      for (int j = 0; j < m; ++j) out[left.first[j].id] += w[j];
    else
      for (int j = 0; j < m; ++j) out[left.first[j].id] = w[j];
    left.first += m;
  }
}

}  // namespace specdec
