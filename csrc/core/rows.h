// SPDX-License-Identifier: Apache-2.0
// The rows of one side, target or draft, as distributions
#pragma once

#include "arguments.h"

namespace specdec {

// The index of each position's row in a store of rows, for rows that are not in the order of the positions. In a store
// [S, K, V], row n is at [n / K, n % K]; in a store [N, V], K is N. There is no row for an index outside [0, N).
// Indices in GPU tensors are not checked before a launch.
struct Store {
  Ints row;                    // [B, rows per request]; ragged: the requests' rows one after another
  int64_t request_stride = 0;  // of `row`, if dense
  int64_t N = 0, K = 1;
  SPECDEC_HD explicit operator bool() const { return bool(row); }
};

// The rows of one side, logits or probabilities: their memory, and their sampling parameters or stats.
struct Rows {
  RowMemory memory;
  Kind kind = Kind::kLogits;
  const float* stats = nullptr;     // [rows, 4]
  bool stats_of_positions = false;  // stats are indexed by position, not by row of the store
  Sampling sampling;                // [B], if there are no stats
  int64_t per_request = 0;          // positions per request, if dense; in verify_tree, stored rows per request
  int64_t extra = 0;                // positions of a request beyond its drafts, if ragged
  Store store;
  bool by_position = true;  // whether memory has the rows in the order of the positions; else `store` has their indices
  Views views;
  RowsIds ids;

  // All token ids of this side are less than this.
  SPECDEC_HD int64_t ids_end() const { return kAlwaysIds || (kReadsIds && ids) ? kIdsEnd : memory.V; }

  // The index of position i of request b. If ragged, `start` is the index of the request's first drafted token, else
  // -1.
  SPECDEC_HD int64_t index(int64_t start, int64_t b, int64_t i) const {
    return start < 0 ? b * per_request + i : start + extra * b + i;
  }
  // The index of the row at position i of request b
  SPECDEC_HD int64_t number(int64_t start, int64_t b, int64_t i) const {
    if (!store) return index(start, b, i);
    return start < 0 ? store.row.at(b * store.request_stride + i * store.row.stride) : store.row[index(start, b, i)];
  }
  SPECDEC_HD bool has_row(int64_t start, int64_t b, int64_t i) const {
    if (!store) return bool(memory);
    const int64_t n = number(start, b, i);
    return n >= 0 && n < store.N;
  }
  // For a draft: whether the token drafted at position i has no row. Its distribution q is then one-hot.
  SPECDEC_HD bool is_one_hot(int64_t start, int64_t b, int64_t i) const {
    return !memory || (store && number(start, b, i) == -1);
  }

  // An upper bound on the number of ids in sums over a row; V is the target's
  SPECDEC_HD int64_t most_ids(int64_t V) const { return ids.most(V, memory.V); }

  // Row i of request b, which must exist, with the request's view at `position` (core/views.h). In CUDA, `view` is the
  // index of this view in Views::seen, and of the row's ids in RowsIds::listed.
  SPECDEC_HD Row at(int64_t start, int64_t b, int64_t i, int64_t position, int64_t view) const {
    Row row = as_stored(start, b, i).seen(views, b, position, view);
#ifndef SPECDEC_IN_CUDA
    row.ids = ids.of(index(start, b, i));
#endif
    return row;
  }
  SPECDEC_HD Row at(int64_t start, int64_t b, int64_t i) const { return at(start, b, i, i, index(start, b, i)); }
#ifndef SPECDEC_IN_CUDA
  // The same row by id
  Row of_ids(int64_t start, int64_t b, int64_t i, int64_t position, int64_t view) const {
    return at(start, b, i, position, view).by_ids(kind == Kind::kProbs);
  }
#else
  // The same row by id
  SPECDEC_HD Row of_ids(int64_t start, int64_t b, int64_t i, int64_t position, int64_t view) const {
    if constexpr (kReadsIds) {
      if (kAlwaysIds || ids.listed) return Row(ids.listed + view);
    }
    return at(start, b, i, position, view);
  }
  SPECDEC_HD Row of_ids(int64_t start, int64_t b, int64_t i) const {
    return of_ids(start, b, i, i, index(start, b, i));
  }
  // The ids of this row's entries
  SPECDEC_HD Ints ids_at(int64_t start, int64_t b, int64_t i) const {
    const int64_t n = number(start, b, i);
    const int64_t slot = store ? n / store.K : start < 0 ? b : 0, in_slot = store ? n % store.K : start < 0 ? i : n;
    return ids.at(slot * ids.batch_stride + in_slot * ids.row_stride, memory.V);
  }
#endif
  SPECDEC_HD RowStats known_stats(int64_t start, int64_t b, int64_t i) const {
    return stats_at(stats, stats_of_positions ? index(start, b, i) : number(start, b, i));
  }

  // For the target: the distribution of row i
  template <class Executor>
  SPECDEC_HD Dist dist(Executor& executor, int64_t start, int64_t b, int64_t i) const {
    return dist(executor, start, b, i, i, index(start, b, i));
  }
  template <class Executor>
  SPECDEC_HD Dist dist(Executor& executor, int64_t start, int64_t b, int64_t i, int64_t position, int64_t view) const {
    if (store && !has_row(start, b, i)) return no_row();
    return dist(executor, at(start, b, i, position, view), start, b, i);
  }
  // For the draft, whose rows may have ids: the distribution of row i
  template <class Executor>
  SPECDEC_HD Dist dist_by_id(Executor& executor, int64_t start, int64_t b, int64_t i) const {
    return dist_by_id(executor, start, b, i, i, index(start, b, i));
  }
  template <class Executor>
  SPECDEC_HD Dist dist_by_id(Executor& executor, int64_t start, int64_t b, int64_t i, int64_t position,
                             int64_t view) const {
    if (store && !has_row(start, b, i)) return no_row();
    return dist(executor, of_ids(start, b, i, position, view), start, b, i);
  }

  // Row i of request b, without its view and its ids
  SPECDEC_HD Row as_stored(int64_t start, int64_t b, int64_t i) const {
    if (by_position) return start < 0 ? memory.at(b, i) : memory.at(0, index(start, b, i));
    const int64_t n = number(start, b, i);
    // memory.batch_stride is a slot's stride minus K row strides, so the second index is n, not n % K.
    return memory.at(int64_t(uint64_t(n) / uint64_t(store.K)), n);
  }

 private:
  template <class Executor>
  SPECDEC_HD Dist dist(Executor& executor, const Row& row, int64_t start, int64_t b, int64_t i) const {
    if (kind == Kind::kProbs) return from_probs(row);
    return from_stats(row, stats ? known_stats(start, b, i) : executor.stats(row, sampling[b]));
  }
};

}  // namespace specdec
