// SPDX-License-Identifier: Apache-2.0
// Reads rows whose entries have ids of their own (core/entry_ids.h), and applies their views.
#pragma once

#include "views.h"
#include "simd_kernels.h"

namespace specdec {

class ListedReader {
 public:
  using Place = EntryIds::Place;

  // The entry at a place of the row, which stands for `id`; -inf without one
  static float entry(const Row& row, int64_t at, int64_t id);
  // Entry v of a row that is read by id: what the entries of id v add up to
  float entry_of_id(const Row& row, int64_t v) const;

  // Whether entries of a row as it lies change when they are read: by its view, or since some have no id
  Changes changes(const Row& row) const {
    Changes changes;
    changes.listed = row.view || row.ids->n < row.ids->k;
    return changes;
  }
  // Changes the n entries z from place `begin` on.
  void change(const Row& row, int64_t begin, int n, float* z) const;

  // Writes chunk c of a row that is read by id to buf: what m ids have, then `pad` up to padded(n). An id without an
  // entry has 0 in a row of probabilities, else -inf.
  const float* chunk(const Row& row, int64_t c, int m, int n, float pad, float* buf) const;

  // Whether any id of chunk c has an entry
  static bool reaches(const EntryIds& ids, int64_t c) { return ids.between(c * kChunk, (c + 1) * kChunk).size() > 0; }
  // Writes chunk c as probabilities of d, 0 beyond the row. Those of a row of probabilities go through clean_prob().
  void probs(const Dist& d, int64_t c, int n, float* out) const;

 private:
  Entries gather(const Row& row, const Place* places, int m, float* buf) const;

  const RowKernels& kernels_ = rows();
};

}  // namespace specdec
