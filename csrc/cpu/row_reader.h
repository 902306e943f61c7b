// SPDX-License-Identifier: Apache-2.0
// Reads rows on the CPU, and applies their views to what it reads. Besides this file, only listed_reader.cpp, for rows
// with ids, reads the memory of rows. This process has the whole row, or some of its chunks (shards.h).
#pragma once

#include <algorithm>

#include "listed_reader.h"
#include "simd_kernels.h"

namespace specdec {

struct Split;

class RowReader {
 public:
  explicit RowReader(const Split* split = nullptr) : split_(split) {}

  const RowKernels& kernels = rows();
  const ListedReader listed;

  // Entry v of a row, which this process must have
  float entry(const Row& row, int64_t v) const {
    if (row.ids) return row.by_id ? listed.entry_of_id(row, v) : listed.entry(row, v, row.id_at(v));
    return seen_entry(row.view, v, [&] { return number_at(row.pointer(), row.dtype, place(row, v)); });
  }

  // Called before a pass over all chunks of a row: finds where the row's view changes them.
  void look_at(const Row& row) {
    if (!row.view || row.ids || row.view == found_) return;
    starts_.find(row.view, row.V), found_ = row.view;
  }

  // The changes that the view of a row, or its ids, make in chunk c
  Changes changes(const Row& row, int64_t c) const { return changes(row, c, chunk_size(row.V, c)); }

  // Chunk c in place, or a copy in buf [kChunk] if there are changes or the chunk's size is not a multiple of kPad
  Entries chunk(const Row& row, int64_t c, float* buf) const { return chunk(row, changes(row, c), c, buf); }
  Entries chunk(const Row& row, const Changes& changes, int64_t c, float* buf) const {
    const int n = chunk_size(row.V, c);
    const Entries z = at(row, c);
    return n == padded(n) && !changes ? z : Entries::copied(load(row, changes, c, n, n, -HUGE_VALF, buf));
  }
  // The same. Also sets `max` to the largest entry, NaN aside. The mask must allow at least one id of the chunk.
  Entries chunk(const Row& row, const Changes& changes, int64_t c, float* buf, float& max) const {
    if (changes) {
      max = copy(row, changes, c, chunk_size(row.V, c), buf);
      return Entries::copied(buf);
    }
    const Entries z = chunk(row, changes, c, buf);
    max = kernels.max(z, chunk_size(row.V, c));
    return z;
  }

  // The first n entries of chunk c as floats. From the end of the row, or from id V if that is less, up to padded(n),
  // they are `pad`.
  const float* floats(const Row& row, int64_t c, int n, float pad, float* buf, int64_t V = INT64_MAX) const {
    const int m = int(std::clamp<int64_t>(std::min(V, row.V) - c * kChunk, 0, n));
    if (row.by_id) return listed.chunk(row, c, m, n, pad, buf);
    if (m > 0) return load(row, changes(row, c, m), c, m, n, pad, buf);
    std::fill(buf, buf + padded(n), pad);
    return buf;
  }
  const float* floats(const Row& row, int64_t c, float pad, float* buf) const {
    return floats(row, c, chunk_size(row.V, c), pad, buf);
  }

 private:
  Changes changes(const Row& row, int64_t c, int n) const {
    if (row.ids) return listed.changes(row);
    if (!row.view) return {};
    if (row.view == found_ && n == chunk_size(row.V, c)) return starts_.changes(row.view, c, n);
    return changes_in(row.view, c * kChunk, n);
  }
  // m entries of chunk c with these changes, and `pad` up to padded(n). The result is in buf if there are changes.
  const float* load(const Row& row, const Changes& changes, int64_t c, int m, int n, float pad, float* buf) const {
    if (!changes) return kernels.load(at(row, c), m, n, pad, buf);
    if (changes.empty)  // the row is not read
      std::fill(buf, buf + m, -HUGE_VALF);
    else
      copy(row, changes, c, m, buf);
    std::fill(buf + m, buf + padded(n), pad);
    return buf;
  }
  // Writes m entries of chunk c with these changes to buf. Returns the largest, NaN aside.
  float copy(const Row& row, const Changes& changes, int64_t c, int m, float* buf) const {
    const Entries raw = at(row, c);
    if (changes.listed) {
      kernels.copy(raw, m, nullptr, buf);
      listed.change(row, c * kChunk, m, buf);
      return kernels.max(buf, m);
    }
    const uint32_t* const words = changes.masked ? changes.words() : nullptr;
    if (!changes.values()) return kernels.copy(raw, m, words, buf);
    const float max = kernels.copy(raw, m, nullptr, buf);
    const Peaks changed = change(row.view, changes, c * kChunk, m, buf);
    if (words) return kernels.copy(buf, m, words, buf);
    return changed.before < max ? std::max(max, changed.after) : kernels.max(buf, m);
  }
  // The place of entry v in this process's memory
  int64_t place(const Row& row, int64_t v) const { return split_ && !row.ids ? v - first(row) : v; }
  int64_t first(const Row& row) const;  // the first id that this process has
  Entries at(const Row& row, int64_t c) const {
    const int64_t bytes = place(row, c * kChunk) * (row.dtype == kFloat32 ? 4 : 2);
    return {static_cast<const char*>(row.pointer()) + bytes, row.dtype};
  }

  const Split* split_;
  View found_;  // the view of starts_
  ChunkStarts starts_;
};

}  // namespace specdec
