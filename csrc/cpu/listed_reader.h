// SPDX-License-Identifier: Apache-2.0
// Reads rows whose entries have ids of their own (core/entry_ids.h), and applies their views.
#pragma once

#include "views.h"
#include "simd_kernels.h"

namespace specdec {

class ListedReader {
 public:
  using Place = EntryIds::Place;

  // The entry at a place of the row, whose id is `id`; -inf if it has no id (-1)
  static float entry(const Row& row, int64_t at, int64_t id);
  // Entry v of a row that is read by id: the sum of the entries of id v
  float entry_of_id(const Row& row, int64_t v) const;

  // Whether reading a row in stored order changes entries: it does if the row has a view, or if some entries have no id
  Changes changes(const Row& row) const {
    Changes changes;
    changes.listed = row.view || row.ids->n < row.ids->k;
    return changes;
  }
  // Applies these changes to the n entries z that start at place `begin`.
  void change(const Row& row, int64_t begin, int n, float* z) const;

  // Writes chunk c of a row that is read by id to buf: the sums for the first m ids, then `pad` up to padded(n). An id
  // without an entry gets 0 in a row of probabilities, -inf in a row of logits.
  const float* chunk(const Row& row, int64_t c, int m, int n, float pad, float* buf) const;

  // Whether any id of chunk c has an entry
  static bool reaches(const EntryIds& ids, int64_t c) { return ids.between(c * kChunk, (c + 1) * kChunk).size() > 0; }
  // Writes chunk c of d as n probabilities, then 0 up to padded(n). Entries of a probability row go through
  // clean_prob().
  void probs(const Dist& d, int64_t c, int n, float* out) const;

 private:
  Entries gather(const Row& row, const Place* places, int m, float* buf) const;

  const RowKernels& kernels_ = rows();
};

}  // namespace specdec
