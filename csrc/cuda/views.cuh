// SPDX-License-Identifier: Apache-2.0
// Makes the views of an op's rows under penalties (core/penalties.h), in a launch before those that read the rows. A
// block makes one view.
#pragma once

#include "../core/rows.h"
#include "thread_block.cuh"

namespace specdec {

SPECDEC_DEVICE int32_t id_at(const int32_t* ids, int i) { return ids[i]; }
SPECDEC_DEVICE int32_t id_at(const Seen::Entry* entries, int i) { return entries[i].id; }

// The index of the first of n ascending ids that is not less than v; n if there is none
template <class Ids>
SPECDEC_DEVICE int place_in(const Ids* ids, int n, int64_t v) {
  int first = 0;
#pragma unroll 1
  while (first < n) {
    const int middle = first + (n - first) / 2;
    if (id_at(ids, middle) < v)
      first = middle + 1;
    else
      n = middle;
  }
  return first;
}

// x * y, rounded to a float. The compiler never fuses __fmul_rn with an addition. It would fuse a product of two
// doubles that is rounded to float, since it recognises a product of floats there.
SPECDEC_DEVICE float rounded_product(float x, float y) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(x, y);
#else
  return float(double(x) * double(y));
#endif
}

SPECDEC_DEVICE float penalised(const Amounts& by, float e, int64_t count) {
  e = e > 0 ? e / by.repetition : rounded_product(e, by.repetition);
  if (count == 0) return e;
  e -= rounded_product(by.frequency, float(count));
  return e - by.presence;
}

// The memory for the views of one side
struct ViewLists {
  int64_t W = 0;      // most tokens of a window
  int64_t room = 0;   // most entries of a view
  int64_t spans = 0;  // spans in all chunks of a row
  Seen::Entry* entries = nullptr;
  int32_t *begins = nullptr, *window = nullptr;

  SPECDEC_HD ViewLists() = default;
  SPECDEC_HD ViewLists(int64_t W, int64_t H, int64_t V)
      : W(W), room(H + W), spans(chunk_count(V) * (kChunk / Seen::kSpan)) {}
};

// Writes the window that ends at a position, its last token first. Returns its length to all threads of a block.
SPECDEC_DEVICE int read_window(const Penalties& p, int64_t b, int64_t position, int64_t most, int32_t* window) {
  __shared__ int length;
  if (threadIdx.x == 0) {
    int n = 0;
#pragma unroll 1
    for (int64_t at = position; at > 0 && n < most; at = p.before(b, at)) {
      const int64_t token = p.token(b, at);
      window[n++] = token < 0 || token > INT32_MAX ? -1 : int32_t(token);
    }
    length = n;
  }
  __syncthreads();
  return length;
}

// The number of ids in a list; -1 if the list is invalid. Called by all threads of a block.
SPECDEC_DEVICE int ids_in(const UsedList& list) {
  const int H = int(list.H);
  int n = 0;
  bool fine = true;
#pragma unroll 1
  for (int first = 0; first < H; first += kThreads) {
    const int j = first + int(threadIdx.x);
    fine &= j >= H || list.fine(j);
    n += __syncthreads_count(j < H && list.ids[j] >= 0);
  }
  return __syncthreads_and(fine) ? n : -1;
}

// Writes the entries that change, and returns how many there are: those of the list's ids, and of window tokens that
// are not in the list. Called by all threads of a block.
SPECDEC_DEVICE int put_entries(const UsedList& list, int H, int32_t* window, int n, const Amounts& amounts,
                               const Row& row, Seen::Entry* entries) {
  int32_t* const fresh = window + n;  // the window tokens that are not in the list, each once; else -1
#pragma unroll 1
  for (int k = threadIdx.x; k < n; k += kThreads) {
    const int32_t v = window[k];
    const int at = place_in(list.ids, H, v);
    bool is_fresh = v >= 0 && (at == H || list.ids[at] != v);
#pragma unroll 1
    for (int i = 0; i < k; ++i) is_fresh &= window[i] != v;
    fresh[k] = is_fresh ? v : -1;
  }
  __syncthreads();
  const auto fresh_below = [&](int64_t v) {
    int count = 0;
#pragma unroll 1
    for (int k = 0; k < n; ++k) count += fresh[k] >= 0 && fresh[k] < v;
    return count;
  };
  const auto put = [&](int at, int32_t v, int64_t count) {
#pragma unroll 1
    for (int k = 0; k < n; ++k) count += window[k] == v;
    entries[at] = {v, v < row.V ? penalised(amounts, lying_entry(row, v), count) : 0};
  };
#pragma unroll 1
  for (int j = threadIdx.x; j < H; j += kThreads) put(j + fresh_below(list.ids[j]), list.ids[j], list.counts[j]);
#pragma unroll 1
  for (int k = threadIdx.x; k < n; k += kThreads) {
    const int32_t v = fresh[k];
    if (v >= 0) put(place_in(list.ids, H, v) + fresh_below(v), v, 0);
  }
  __syncthreads();
  return H + fresh_below(int64_t{INT32_MAX} + 1);
}

// Makes the view with this number: the row as request b sees it under its penalties, with the window that ends at a
// position. Called by all threads of a block.
SPECDEC_DEVICE void make_view(const Penalties& p, const ViewLists& lists, int64_t number, const Row& row, int64_t b,
                              int64_t position) {
  Seen::Entry* const entries = lists.entries + number * lists.room;
  int32_t* const begins = lists.begins + number * (lists.spans + 1);
  const auto leave = [&](const Seen::Entry* seen, bool invalid) {
    if (threadIdx.x == 0) p.seen[number] = {memory_of(row), seen, begins, invalid};
  };
  if (!p.fine(b)) return leave(entries, true);
  const Amounts amounts = p.amounts(b);
  if (!amounts.any()) return leave(nullptr, false);
  int32_t* const window = lists.window + number * 2 * lists.W;
  const int n = read_window(p, b, position, lists.W, window);
  const UsedList list(p, p.list(b));
  const int H = ids_in(list);
  if (H < 0) return leave(entries, true);
  const int all = put_entries(list, H, window, n, amounts, row, entries), inside = place_in(entries, all, row.V);
#pragma unroll 1
  for (int c = threadIdx.x; c <= lists.spans; c += kThreads)
    begins[c] = place_in(entries, inside, int64_t{c} * Seen::kSpan);
  leave(entries, false);
}

// Calls f(side, its penalties, the number of the view, the row, the request, the position) for each side of an op, at
// position n. Ops with two sides have their own overload.
template <class F>
SPECDEC_DEVICE void each_view(const SeenRows& rows, int64_t n, const F& f) {
  f(0, rows.penalties, n, rows.RowMemory::at(0, n), n, rows.drafted);
}

template <class Op>
struct Views {
  Op a;
  ViewLists lists[2];
};
// Without a number of blocks here, ptxas keeps to 64 registers for sm_80 and spills.
template <class Op>
__global__ void __launch_bounds__(kThreads, 3) make_views(const Views<Op> s) {
  each_view(s.a, blockIdx.x, [&](int side, const Penalties& p, int64_t number, const Row& row, int64_t b, int64_t at) {
    make_view(p, s.lists[side], number, row, b, at);
  });
}

// Takes the memory for an op's views, and stores its addresses in the op's penalties. make() is the launch that makes
// the views. A side has at most `most` views, with windows of at most W tokens.
class ViewsRoom {
 public:
  ViewsRoom(const Tensor& like, SeenRows& rows, int64_t most)
      : ViewsRoom(like, {{&rows.penalties, rows.V}}, most, rows.drafted) {}
  template <class Op>
  ViewsRoom(const Tensor& like, Op& a, int64_t most, int64_t W)
      : ViewsRoom(like, {{&a.target.penalties, a.target.memory.V}, {&a.draft.penalties, a.draft.memory.V}}, most, W) {}

  template <class Op>
  void make(const char* op, const Op& a, int64_t positions, [[maybe_unused]] cudaStream_t stream) const {
    if (any_ && positions > 0)
      SPECDEC_LAUNCH(op, make_views<Op>, positions, stream, Views<Op>{a, {lists_[0], lists_[1]}});
  }

 private:
  struct Side {
    Penalties* penalties;
    int64_t V;
  };
  ViewsRoom(const Tensor& like, std::initializer_list<Side> sides, int64_t most, int64_t W) {
    const auto each = [&](Scratch& scratch, const auto& f) {
      ViewLists* lists = lists_;
      for (const Side& side : sides) {
        ViewLists& to = *lists++;
        if (!*side.penalties) continue;
        to = {W, side.penalties->H, side.V};
        const size_t seen = scratch.ask<Seen>(most), entries = scratch.ask<Seen::Entry>(most * to.room),
                     begins = scratch.ask<int32_t>(most * (to.spans + 1)), window = scratch.ask<int32_t>(most * 2 * W);
        f(*side.penalties, to, seen, entries, begins, window);
      }
    };
    each(scratch_, [&](auto&&...) { any_ = true; });
    if (!any_) return;
    scratch_.allocate(like);
    Scratch again;
    each(again, [&](Penalties& p, ViewLists& to, size_t seen, size_t entries, size_t begins, size_t window) {
      p.seen = scratch_.at<Seen>(seen);
      to.entries = scratch_.at<Seen::Entry>(entries);
      to.begins = scratch_.at<int32_t>(begins), to.window = scratch_.at<int32_t>(window);
    });
  }

  Scratch scratch_;
  ViewLists lists_[2];
  bool any_ = false;
};

}  // namespace specdec
