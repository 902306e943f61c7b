// SPDX-License-Identifier: Apache-2.0
// Makes the views of an op's rows (core/views.h), in a launch before those that read the rows. A block makes one view.
// If histories are tables, another launch turns them into lists before (listed_tables.cuh).
#pragma once

#include <algorithm>

#include "../core/rows.h"
#include "listed_tables.cuh"
#include "used_list.cuh"

namespace specdec {

SPECDEC_DEVICE int32_t id_at(const Seen::Entry* entries, int i) { return entries[i].id; }

// x * y, rounded to float before anything is added to it. The compiler never fuses __fmul_rn with an addition. It would
// fuse the product of doubles below, since it recognises that this is a product of floats.
SPECDEC_DEVICE float rounded_product(float x, float y) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(x, y);
#else
  return float(double(x) * double(y));
#endif
}

// Entry e of an id under penalties; `count`: how often the id is in the output and in the window.
SPECDEC_DEVICE float penalised(const Amounts& by, float e, int64_t count) {
  e = e > 0 ? e / by.repetition : rounded_product(e, by.repetition);
  if (count == 0) return e;
  e -= rounded_product(by.frequency, float(count));
  return e - by.presence;
}

// The memory for the views of one side: `entries` [views, room], `ids` [views, 3 * loose] for LooseIds, and `begins`
// [views, spans + 1]
struct ViewLists {
  int64_t loose = 0;  // most tokens of a window plus most ids of a bias list
  int64_t room = 0;   // most entries of a view
  int64_t spans = 0;  // spans in all chunks of a row
  Seen::Entry* entries = nullptr;
  int32_t *begins = nullptr, *ids = nullptr;

  ViewLists() = default;
  SPECDEC_HD ViewLists(int64_t loose, int64_t H, int64_t V)
      : loose(loose), room(H + loose), spans(chunk_count(V) * (kChunk / Seen::kSpan)) {}
};

// An id as int32; -1, as for padding, if it is not in the vocabulary
SPECDEC_DEVICE int32_t known_id(int64_t v, int64_t V) { return v < 0 || v >= V ? -1 : int32_t(v); }

// The unsorted ids of a view: the tokens of its window, the last one first, then the ids of its bias list
struct LooseIds {
  const Bias& bias;
  int64_t list;                  // of the bias; -1: none
  int window = 0;                // tokens of the window
  int n = 0;                     // ids in all
  int32_t *ids, *state, *fresh;  // [n] each

  // Reads the ids into `room` [3 * most]. Called by all threads of a block, like sort().
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
  // Writes the ids that the list lacks to `fresh`, ascending, and returns how many they are.
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

  // How often id v is in the window. Called by any thread, like biased().
  SPECDEC_DEVICE int64_t count_in_window(int32_t v) const {
    int64_t count = 0;
#pragma unroll 1
    for (int k = 0; k < window; ++k) count += ids[k] == v;
    return count;
  }
  // Entry e of id v plus its bias
  SPECDEC_DEVICE float biased(int32_t v, float e) const {
#pragma unroll 1
    for (int k = window; k < n; ++k) {
      if (ids[k] == v) e += bias.value(list, k - window);
    }
    return e;
  }
};

// Writes the entries of the H used ids, all in the vocabulary, without bias and window. Then writes those of the loose
// ids; if an id is both used and loose, its second entry replaces the first. Returns the number of entries. Called by
// all threads of a block.
SPECDEC_DEVICE int put_entries(const UsedList& list, int H, LooseIds& loose, const Amounts& amounts, const Row& row,
                               const Mask& mask, const uint32_t* words, Seen::Entry* entries) {
  const int fresh = loose.sort(list.ids, H);
  const auto put = [&](int at, int32_t v, float e, bool used, int64_t count) {
    if (used || count > 0) e = penalised(amounts, e, count);
    entries[at] = {v, words && !mask.allows(words, v) ? -HUGE_VALF : e};
  };
#pragma unroll 1
  for (int j = threadIdx.x; j < H; j += kThreads) {
    const int32_t v = list.ids[j];
    put(j + place_in(loose.fresh, fresh, v), v, stored_entry(row, v), true, list.counts[j]);
  }
  __syncthreads();
#pragma unroll 1
  for (int k = threadIdx.x; k < loose.n; k += kThreads) {
    if (loose.state[k] == -1) continue;
    const int32_t v = loose.ids[k];
    const bool used = loose.state[k] < 0;
    const int j = place_in(list.ids, H, v);
    const float e = loose.biased(v, stored_entry(row, v));
    put(j + place_in(loose.fresh, fresh, v), v, e, used, (used ? list.counts[j] : 0) + loose.count_in_window(v));
  }
  __syncthreads();
  return H + fresh;
}

// Makes view `number`: that of `row`, as request b reads it at this position. Called by all threads of a block.
SPECDEC_DEVICE void make_view(const Views& views, const ViewLists& lists, int64_t number, const Row& row, int64_t b,
                              int64_t position) {
  Seen::Entry* const entries = lists.entries + number * lists.room;
  int32_t* const begins = lists.begins + number * (lists.spans + 1);
  const uint32_t* words = nullptr;
  const auto leave = [&](const Seen::Entry* seen, bool invalid) {
    if (threadIdx.x == 0) views.seen[number] = {memory_of(row), seen, begins, words, views.mask.W, invalid};
  };
  if (!views.fine(b, position)) return leave(entries, true);
  const bool penalises = views.penalises(b);
  if (!views.change(b, position)) return leave(nullptr, false);
  if (views.mask_list(b, position) >= 0) words = views.mask.of(views.mask_list(b, position));
  LooseIds loose(views, b, position, penalises, row.V, lists.loose, lists.ids + number * 3 * lists.loose);
  const UsedList list = penalises ? UsedList(views.penalties, views.penalties.history(b)) : UsedList();
  const int H = ids_in(list);
  if (H < 0) return leave(entries, true);
  const Amounts amounts = penalises ? views.penalties.amounts(b) : Amounts{1, 0, 0};
  const int inside = place_in(list.ids, H, row.V);  // ids beyond the vocabulary change nothing
  const int all = put_entries(list, inside, loose, amounts, row, views.mask, words, entries);
  if (all == 0 && !words) return leave(nullptr, false);
#pragma unroll 1
  for (int c = threadIdx.x; c <= lists.spans; c += kThreads)
    begins[c] = place_in(entries, all, int64_t{c} * Seen::kSpan);
  leave(entries, false);
}

// Calls f(side, its rows, the index of the view, the row in memory, the ids of its entries, the request, the position)
// for each side of an op. n: the index of the block. Ops with two sides have their own overload.
template <class F>
SPECDEC_DEVICE void each_view(const SeenRows& rows, int64_t n, const F& f) {
  f(0, rows, n, rows.RowMemory::at(0, n), rows.ids.at(n * rows.ids.row_stride, rows.V), n, rows.drafted);
}

template <class Op>
struct ViewsLaunch {
  Op a;
  ViewLists lists[2];
};
// Without the number of blocks in the launch bounds, ptxas keeps to 64 registers for sm_80 and spills.
template <class Op>
__global__ void __launch_bounds__(kThreads, 3) make_views(const ViewsLaunch<Op> s) {
  each_view(s.a, blockIdx.x,
            [&](int side, const auto& rows, int64_t number, const Row& row, const Ints&, int64_t b, int64_t at) {
              if (rows.views && !rows.ids) make_view(rows.views, s.lists[side], number, row, b, at);
            });
}

// Allocates the memory for an op's views, and stores its addresses in the op's Views. make() launches the kernels that
// make the views. A side has at most `most` views of B requests, with windows of at most W tokens.
class ViewsRoom {
 public:
  ViewsRoom(const Tensor& like, SeenRows& rows, int64_t most)
      : ViewsRoom(like, {{&rows.views, &rows.ids, rows.V}}, most, most, rows.drafted) {}
  template <class Op>
  ViewsRoom(const Tensor& like, Op& a, int64_t most, int64_t W)
      : ViewsRoom(
            like,
            {{&a.target.views, &a.target.ids, a.target.memory.V}, {&a.draft.views, &a.draft.ids, a.draft.memory.V}},
            a.B, most, W) {}

  template <class Op>
  void make(const char* op, const Op& a, int64_t positions, [[maybe_unused]] cudaStream_t stream) const {
    if (!any_ || positions == 0) return;
    if (tables_.sides[0].tables || tables_.sides[1].tables)
      SPECDEC_LAUNCH(op, list_tables<Op>, requests_, stream, TablesLaunch(tables_));
    SPECDEC_LAUNCH(op, make_views<Op>, positions, stream, ViewsLaunch<Op>{a, {lists_[0], lists_[1]}});
  }
  const ViewLists& lists(int side) const { return lists_[side]; }

 private:
  struct Side {
    Views* views;
    const RowsIds* ids;
    int64_t entries;

    int64_t V() const { return *ids ? kIdsEnd : entries; }  // views change entries by id
  };
  ViewsRoom(const Tensor& like, std::initializer_list<Side> sides, int64_t B, int64_t most, int64_t W) : requests_(B) {
    TablesToLists* tables = tables_.sides;
    for (const Side& side : sides) {
      TablesToLists& to = *tables++;
      const Penalties& p = side.views->penalties;
      if (p.prompt_bits) to.tables = p, to.V = side.V(), to.room = std::min({p.H, side.V(), kMostUsed});
    }
    const auto each = [&](Scratch& scratch, const auto& f) {
      ViewLists* lists = lists_;
      TablesToLists* tables = tables_.sides;
      for (const Side& side : sides) {
        ViewLists& to = *lists++;
        TablesToLists& from = *tables++;
        if (!*side.views) continue;
        to = {W + side.views->bias.n, from.tables ? from.room : side.views->penalties.H, side.entries};
        const size_t used = scratch.ask<int32_t>(from.tables ? B * (2 * from.room + 1) : 0);
        const size_t seen = scratch.ask<Seen>(most), entries = scratch.ask<Seen::Entry>(*side.ids ? 0 : most * to.room),
                     begins = scratch.ask<int32_t>(*side.ids ? 0 : most * (to.spans + 1)),
                     ids = scratch.ask<int32_t>(most * 3 * to.loose);
        f(*side.views, to, from, used, seen, entries, begins, ids);
      }
    };
    // `each` runs twice, with the same offsets: before the allocation to ask for memory, after it to store addresses.
    each(scratch_, [&](auto&&...) { any_ = true; });
    if (!any_) return;
    scratch_.allocate(like);
    Scratch again;
    each(again, [&](Views& views, ViewLists& to, TablesToLists& from, size_t used, size_t seen, size_t entries,
                    size_t begins, size_t ids) {
      if (from.tables) {
        from.ids = scratch_.at<int32_t>(used), from.counts = from.ids + B * from.room;
        from.row = from.counts + B * from.room;
        views.penalties = from.lists(B);
      }
      views.seen = scratch_.at<Seen>(seen);
      to.entries = scratch_.at<Seen::Entry>(entries);
      to.begins = scratch_.at<int32_t>(begins), to.ids = scratch_.at<int32_t>(ids);
    });
  }

  Scratch scratch_;
  int64_t requests_;
  TablesLaunch tables_;
  ViewLists lists_[2];
  bool any_ = false;
};

}  // namespace specdec
