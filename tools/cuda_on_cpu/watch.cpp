// SPDX-License-Identifier: Apache-2.0
#include "watch.h"

#include <algorithm>
#include <stdexcept>

namespace cuda_on_cpu {

Watches watches;

void Watches::add(const std::string& name, std::vector<uintptr_t> rows, size_t row_bytes) {
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  for (size_t i = 1; i < rows.size(); ++i)
    if (rows[i] - rows[i - 1] < row_bytes) throw std::runtime_error("cuda_on_cpu: the rows of " + name + " overlap");
  Watch& w = watches_[name];
  w = {};
  w.rows = std::move(rows), w.row_bytes = row_bytes;
  w.read.resize(w.rows.size()), w.distinct.resize(w.rows.size());
  w.seen.resize(w.rows.size() * row_bytes);
}

void Watches::zero() {
  for (auto& [name, w] : watches_) {
    Watch fresh;
    fresh.rows = std::move(w.rows), fresh.row_bytes = w.row_bytes;
    fresh.read.resize(fresh.rows.size()), fresh.distinct.resize(fresh.rows.size());
    fresh.seen.resize(w.seen.size());
    w = std::move(fresh);
  }
}

void Watches::note(const void* address, size_t bytes, Access access) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(address), end = begin + bytes;
  for (auto& [name, w] : watches_) {
    if (w.rows.empty() || end <= w.rows.front() || begin >= w.rows.back() + w.row_bytes) continue;
    const bool reads = access != Access::write, writes = access == Access::write || access == Access::atomic;
    if (reads) ++w.loads[bytes];
    size_t inside = 0;
    size_t row = size_t(std::upper_bound(w.rows.begin(), w.rows.end(), begin) - w.rows.begin());
    for (row -= row > 0; row < w.rows.size() && w.rows[row] < end; ++row) {
      const uintptr_t from = std::max(begin, w.rows[row]), to = std::min(end, w.rows[row] + w.row_bytes);
      if (from >= to) continue;
      inside += to - from;
      if (!reads) continue;
      w.read[row] += to - from;
      for (size_t i = row * w.row_bytes + (from - w.rows[row]), n = to - from; n; --n, ++i)
        if (!w.seen[i]) w.seen[i] = true, ++w.distinct[row];
    }
    if (writes) w.written += inside;
    w.outside += bytes - inside;
  }
}

}  // namespace cuda_on_cpu
