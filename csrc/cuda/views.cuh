// SPDX-License-Identifier: Apache-2.0
// Makes the views of an op's rows (core/views.h), in a launch before those that read the rows. A block makes one view.
#pragma once

#include "../core/rows.h"
#include "thread_block.cuh"
#include "used_list.cuh"

namespace specdec {

SPECDEC_DEVICE int32_t id_at(const Seen::Entry* entries, int i) { return entries[i].id; }

// The memory for the views of one side
struct ViewLists {
  int64_t loose = 0;  // largest number of tokens in a window plus that of ids in a bias list
  int64_t room = 0;   // largest number of entries in a view
  int64_t spans = 0;  // spans in all chunks of a row
  Seen::Entry* entries = nullptr;
  int32_t *begins = nullptr, *ids = nullptr;

  SPECDEC_HD ViewLists() = default;
  SPECDEC_HD ViewLists(int64_t loose, int64_t H, int64_t V)
      : loose(loose), room(H + loose), spans(chunk_count(V) * (kChunk / Seen::kSpan)) {}
};

// v if it is an id of the vocabulary, else -1, which is padding
SPECDEC_DEVICE int32_t known_id(int64_t v, int64_t V) { return v < 0 || v >= V ? -1 : int32_t(v); }

// The unsorted ids of a view: the tokens of its window, the last one first, then the ids of its bias list
struct LooseIds {
  const Bias& bias;
  int64_t list;                  // of the bias; -1: none
  int window = 0;                // tokens of the window
  int n = 0;                     // ids in all
  int32_t *ids, *state, *fresh;  // [n] each

  // Reads the ids. Called by all threads of a block, as are all functions below.
  SPECDEC_DEVICE LooseIds(const Views& views, int64_t b, int64_t position, bool penalised, int64_t V, int64_t most,
                          int32_t* room)
      : bias(views.bias), list(views.bias_list(b, position)), ids(room), state(room + most), fresh(room + 2 * most) {
    __shared__ int length;
    const int biased = list < 0 ? 0 : int(bias.n);
    if (threadIdx.x == 0) {
      int64_t k = 0;
#pragma unroll 1
      for (int64_t at = penalised ? position : 0; at > 0 && k < most - biased; at = views.window.before(b, at))
        ids[k++] = known_id(views.window.token(b, at), V);
      length = int(k);
    }
    __syncthreads();
    window = length, n = window + biased;
#pragma unroll 1
    for (int j = threadIdx.x; j < biased; j += kThreads) ids[window + j] = known_id(bias.id(list, j), V);
    __syncthreads();
  }

  // Sets state[k] for ids[k] = v: v if the list of used ids lacks v, -2 - v if it has v, and -1 for repeats and pads.
  // Writes the ids that the list lacks to `fresh` in ascending order. Returns their number.
  SPECDEC_DEVICE int sort(const int32_t* used, int H) {
#pragma unroll 1
    for (int k = threadIdx.x; k < n; k += kThreads) {
      const int32_t v = ids[k];
      bool first = v >= 0;
#pragma unroll 1
      for (int i = 0; i < k; ++i) first &= ids[i] != v;
      const int at = place_in(used, H, v);
      state[k] = !first ? -1 : at < H && used[at] == v ? -2 - v : v;
    }
    __syncthreads();
    int all = 0;
#pragma unroll 1
    for (int k = 0; k < n; ++k) all += state[k] >= 0;
#pragma unroll 1
    for (int k = threadIdx.x; k < n; k += kThreads) {
      if (state[k] < 0) continue;
      int place = 0;
#pragma unroll 1
      for (int i = 0; i < n; ++i) place += state[i] >= 0 && state[i] < state[k];
      fresh[place] = state[k];
    }
    __syncthreads();
    return all;
  }

  SPECDEC_DEVICE int64_t count_in_window(int32_t v) const {
    int64_t count = 0;
#pragma unroll 1
    for (int k = 0; k < window; ++k) count += ids[k] == v;
    return count;
  }
  SPECDEC_DEVICE float biased(int32_t v, float e) const {
#pragma unroll 1
    for (int k = window; k < n; ++k) {
      if (ids[k] == v) e += bias.value(list, k - window);
    }
    return e;
  }
};

// Writes the entries of the H listed ids, all in the vocabulary, without bias and window. Then writes the entries of
// the loose ids. An id that is both listed and loose gets the latter. If the history is a table, H is 0. Returns the
// number of entries. Called by all threads of a block.
SPECDEC_DEVICE int put_entries(const Seen& seen, const UsedList& list, int H, LooseIds& loose, const Row& row,
                               const Mask& mask, Seen::Entry* entries) {
  const int fresh = loose.sort(list.ids, H);
  const auto put = [&](int at, int32_t v, float e, bool used, int64_t count) {
    if (used || count > 0) e = penalised(seen.amounts, e, count);
    entries[at] = {v, seen.words && !mask.allows(seen.words, v) ? -HUGE_VALF : e};
  };
#pragma unroll 1
  for (int j = threadIdx.x; j < H; j += kThreads) {
    const int32_t v = list.ids[j];
    put(j + place_in(loose.fresh, fresh, v), v, lying_entry(row, v), true, list.counts[j]);
  }
  __syncthreads();
#pragma unroll 1
  for (int k = threadIdx.x; k < loose.n; k += kThreads) {
    if (loose.state[k] == -1) continue;
    const int32_t v = loose.ids[k];
    const bool listed = loose.state[k] < 0;
    const int j = place_in(list.ids, H, v);
    const int32_t before = listed ? list.counts[j] : seen.table.count(v);
    const float e = before < 0 ? NAN : loose.biased(v, lying_entry(row, v));
    put(j + place_in(loose.fresh, fresh, v), v, e, listed || seen.table.uses(v), before + loose.count_in_window(v));
  }
  __syncthreads();
  return H + fresh;
}

// Makes view `number`, for a row that is read for a position of request b. Called by all threads of a block.
SPECDEC_DEVICE void make_view(const Views& views, const ViewLists& lists, int64_t number, const Row& row, int64_t b,
                              int64_t position) {
  Seen::Entry* const entries = lists.entries + number * lists.room;
  int32_t* const begins = lists.begins + number * (lists.spans + 1);
  Seen& seen = views.seen[number];
  const bool is_fine = views.fine(b, position), changes = is_fine && views.change(b, position);
  const bool penalises = changes && views.penalises(b);
  if (threadIdx.x == 0) {
    const bool invalid = changes || !is_fine;  // until the entries are written
    seen = {memory_of(row), changes ? entries : nullptr, begins, nullptr, views.mask.W, invalid, {}, {1, 0, 0}};
    if (changes && views.mask_list(b, position) >= 0) seen.words = views.mask.of(views.mask_list(b, position));
    if (penalises) seen.amounts = views.penalties.amounts(b);
    if (penalises && !views.penalties.ids) seen.table = UsedTable(views.penalties, views.penalties.history(b), row.V);
  }
  __syncthreads();
  if (!changes) return;
  LooseIds loose(views, b, position, penalises, row.V, lists.loose, lists.ids + number * 3 * lists.loose);
  const bool is_list = penalises && views.penalties.ids;
  const UsedList list = is_list ? UsedList(views.penalties, views.penalties.history(b)) : UsedList();
  const int H = ids_in(list);
  if (H < 0) return;
  const int inside = place_in(list.ids, H, row.V);  // ids beyond the vocabulary change nothing
  const int all = put_entries(seen, list, inside, loose, row, views.mask, entries);
#pragma unroll 1
  for (int c = threadIdx.x; c <= lists.spans; c += kThreads)
    begins[c] = place_in(entries, all, int64_t{c} * Seen::kSpan);
  if (threadIdx.x == 0) {
    seen.invalid = false;
    if (all == 0 && !seen.words && !seen.table) seen.entries = nullptr;
  }
}

// Calls f(side, its views, the index of the view, the row, the request, the position) for each side of an op. n: the
// index of the block. Ops with two sides have their own overload.
template <class F>
SPECDEC_DEVICE void each_view(const SeenRows& rows, int64_t n, const F& f) {
  f(0, rows.views, n, rows.RowMemory::at(0, n), n, rows.drafted);
}

template <class Op>
struct ViewsLaunch {
  Op a;
  ViewLists lists[2];
};
// Without the number of blocks per SM, ptxas limits itself to 64 registers for sm_80 and spills.
template <class Op>
__global__ void __launch_bounds__(kThreads, 3) make_views(const ViewsLaunch<Op> s) {
  each_view(s.a, blockIdx.x, [&](int side, const Views& of, int64_t number, const Row& row, int64_t b, int64_t at) {
    make_view(of, s.lists[side], number, row, b, at);
  });
}

// Allocates the memory for an op's views, and stores its addresses in them. make() launches the kernel that makes the
// views. A side has at most `most` views, with windows of at most W tokens.
class ViewsRoom {
 public:
  ViewsRoom(const Tensor& like, SeenRows& rows, int64_t most)
      : ViewsRoom(like, {{&rows.views, rows.V}}, most, rows.drafted) {}
  template <class Op>
  ViewsRoom(const Tensor& like, Op& a, int64_t most, int64_t W)
      : ViewsRoom(like, {{&a.target.views, a.target.memory.V}, {&a.draft.views, a.draft.memory.V}}, most, W) {}

  template <class Op>
  void make(const char* op, const Op& a, int64_t positions, [[maybe_unused]] cudaStream_t stream) const {
    if (any_ && positions > 0)
      SPECDEC_LAUNCH(op, make_views<Op>, positions, stream, ViewsLaunch<Op>{a, {lists_[0], lists_[1]}});
  }

 private:
  struct Side {
    Views* views;
    int64_t V;
  };
  ViewsRoom(const Tensor& like, std::initializer_list<Side> sides, int64_t most, int64_t W) {
    const auto each = [&](Scratch& scratch, const auto& f) {
      ViewLists* lists = lists_;
      for (const Side& side : sides) {
        ViewLists& to = *lists++;
        if (!*side.views) continue;
        const Penalties& penalties = side.views->penalties;
        to = {W + side.views->bias.n, penalties.ids ? penalties.H : 0, side.V};
        const size_t seen = scratch.ask<Seen>(most), entries = scratch.ask<Seen::Entry>(most * to.room),
                     begins = scratch.ask<int32_t>(most * (to.spans + 1)),
                     ids = scratch.ask<int32_t>(most * 3 * to.loose);
        f(*side.views, to, seen, entries, begins, ids);
      }
    };
    each(scratch_, [&](auto&&...) { any_ = true; });
    if (!any_) return;
    scratch_.allocate(like);
    Scratch again;
    each(again, [&](Views& views, ViewLists& to, size_t seen, size_t entries, size_t begins, size_t ids) {
      views.seen = scratch_.at<Seen>(seen);
      to.entries = scratch_.at<Seen::Entry>(entries);
      to.begins = scratch_.at<int32_t>(begins), to.ids = scratch_.at<int32_t>(ids);
    });
  }

  Scratch scratch_;
  ViewLists lists_[2];
  bool any_ = false;
};

}  // namespace specdec
