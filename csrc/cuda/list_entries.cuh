// SPDX-License-Identifier: Apache-2.0
// Lists the entries of a draft's rows by id (Listed in core/entry_ids.h), in a launch before those that read the rows.
// A block takes one row. It sorts the ids of a sparse row (those of a map are sorted already). It copies the row, with
// its view applied, if it holds logits and is sparse or has a view.
#pragma once

#include "views.cuh"

namespace specdec {

using Place = EntryIds::Place;
SPECDEC_DEVICE int32_t id_at(const Place* places, int i) { return places[i].id; }
SPECDEC_DEVICE bool before(const Place& a, const Place& b) { return a.id != b.id ? a.id < b.id : a.at < b.at; }

// Sorts n places in memory, by bitonic merges. n may be any number: every exchange moves the smaller place to the lower
// index, so an exchange with an index of n or more is skipped. Called by all threads of a block.
SPECDEC_DEVICE void sort(Place* places, int n) {
  const auto exchange = [&](int64_t i, int64_t j) {
    if (j >= n) return;
    const Place a = places[i], b = places[j];
    if (before(b, a)) places[i] = b, places[j] = a;
  };
#pragma unroll 1
  for (int64_t size = 2; size < 2 * int64_t{n}; size *= 2) {
#pragma unroll 1
    for (int64_t step = size / 2; step > 0; step /= 2) {
      __syncthreads();
#pragma unroll 1
      for (int64_t k = threadIdx.x; k / step * 2 * step < n; k += kThreads) {
        const int64_t begin = k / step * 2 * step, at = k % step;
        exchange(begin + at, step == size / 2 ? begin + 2 * step - 1 - at : begin + step + at);
      }
    }
  }
  __syncthreads();
}

// The memory for the entries of one side's rows
struct ListedRows {
  Listed* listed = nullptr;       // [positions]
  Place* places = nullptr;        // [positions, k], sparse only
  float* written = nullptr;       // [positions, stride]: copies, with views applied; null: no copies
  int32_t* repeats = nullptr;     // [positions]; [1] of a map
  Seen* seen = nullptr;           // [positions], of a map: views that mask the draft ids without a target id
  uint32_t* mapped = nullptr;     // [words]: their mask; bit j: entry j has an id
  int32_t* none = nullptr;        // [words + 1] zeros: their `begins`, since they have no entries
  int64_t stride = 0, words = 0;  // stride: from row to row of `written`, in floats
  int64_t V = 0;                  // ids of V or more are numbered anew
  bool adds = false;
};

// Sorts the ids of a row into its places, numbers those of V or more anew, and sets n, end and repeats. Called by all
// threads of a block.
SPECDEC_DEVICE void list_sparse(Listed& row, Place* places, int32_t* repeats) {
  constexpr int32_t kNone = INT32_MAX;
#pragma unroll 1
  for (int j = threadIdx.x; j < row.k; j += kThreads) {
    const int64_t id = row.of(j);
    places[j] = {id < 0 ? kNone : int32_t(id), j};
  }
  sort(places, row.k);
  row.n = place_in(places, row.k, kNone);
  bool twice = false;
#pragma unroll 1
  for (int i = threadIdx.x; i + 1 < row.n; i += kThreads) twice |= places[i].id == places[i + 1].id;
  twice = __syncthreads_or(twice);
  if (threadIdx.x == 0) {
    *repeats = twice;
    int32_t last = -1, number = row.V - 1;
#pragma unroll 1
    for (int i = place_in(places, row.n, row.V); i < row.n; ++i) {
      number += places[i].id != last, last = places[i].id;
      places[i].id = number;
    }
  }
  __syncthreads();
  row.end = row.n > 0 ? places[row.n - 1].id + 1 : 1;
}

// Writes a row with its view applied. Views apply to the ids of its entries, and an entry without an id becomes -inf.
// Called by all threads of a block.
SPECDEC_DEVICE void write_seen(const Views& views, const ViewLists& lists, int64_t number, const Row& from, int64_t b,
                               int64_t position, const Listed& row, float* out) {
  const auto write = [&](const auto& seen) {
#pragma unroll 1
    for (int j = threadIdx.x; j < row.k; j += kThreads) {
      const int64_t id = row.of(j);
      out[j] = id < 0 ? -HUGE_VALF : seen(int32_t(id), stored_entry(from, j));
    }
  };
  if (!views || (views.fine(b, position) && !views.change(b, position)))
    return write([](int32_t, float z) { return z; });
  bool fine = views.fine(b, position);
  const bool penalises = fine && views.penalises(b);
  const UsedList list = penalises ? UsedList(views.penalties, views.penalties.history(b)) : UsedList();
  const int H = ids_in(list);
  fine &= H >= 0;
  if (!fine) return write([](int32_t, float) { return NAN; });
  const LooseIds loose(views, b, position, penalises, kIdsEnd, lists.loose, lists.ids + number * 3 * lists.loose);
  const Amounts amounts = penalises ? views.penalties.amounts(b) : Amounts{1, 0, 0};
  const int64_t m = views.mask_list(b, position);
  const uint32_t* const words = m < 0 ? nullptr : views.mask.of(m);
  write([&](int32_t v, float z) {
    const int j = place_in(list.ids, H, v);
    const bool used = j < H && list.ids[j] == v;
    const int64_t count = (used ? list.counts[j] : 0) + loose.count_in_window(v);
    float e = loose.biased(v, z);
    if (used || count > 0) e = penalised(amounts, e, count);
    return words && !views.mask.allows(words, v) ? -HUGE_VALF : e;
  });
}

// Writes `repeats` and the mask of the draft ids with a target id, which all rows of a map share. Called by all threads
// of a block.
SPECDEC_DEVICE void list_map(const ListedRows& to, const Place* places, const int32_t* table, int k, int n) {
  bool twice = false;
#pragma unroll 1
  for (int i = threadIdx.x; i + 1 < n; i += kThreads) twice |= places[i].id == places[i + 1].id;
  twice = __syncthreads_or(twice);
  if (threadIdx.x == 0) *to.repeats = twice;
  if (!to.seen) return;
#pragma unroll 1
  for (int w = threadIdx.x; w < to.words; w += kThreads) {
    uint32_t bits = 0;
#pragma unroll 1
    for (int j = 32 * w; j < 32 * w + 32 && j < k; ++j) bits |= uint32_t(table[j] >= 0 && table[j] < kIdsEnd) << j % 32;
    to.mapped[w] = bits, to.none[w] = 0;
  }
  if (threadIdx.x == 0) to.none[to.words] = 0;
}

// Lists the entries of the row with this index. The int32 numbers of a map are the places [k], two numbers each, then
// the ids of the entries [k], then `first` [V + 1]. Called by all threads of a block.
SPECDEC_DEVICE void list_row(const ListedRows& to, const RowsIds& ids, const Ints& of_row, const Views& views,
                             const ViewLists& lists, int64_t number, const Row& from, int64_t b, int64_t position) {
  Listed row{};
  row.ids = of_row, row.k = int32_t(from.V), row.adds = to.adds;
  if (ids.is_map) {
    const int32_t* const numbers = static_cast<const int32_t*>(ids.ids.data);
    row.V = int32_t(ids.V), row.places = reinterpret_cast<const Place*>(numbers), row.first = numbers + 3 * row.k;
    row.n = int32_t(clamped(row.first[row.V], row.k));
    row.end = row.n > 0 ? int32_t(clamped(row.places[row.n - 1].id, row.V - 1)) + 1 : 1;
    row.repeats = to.repeats;
  } else {
    Place* const places = to.places + number * row.k;
    row.V = int32_t(to.V), row.places = places, row.repeats = to.repeats + number;
    list_sparse(row, places, to.repeats + number);
  }
  row.data = row.stored = memory_of(from), row.dtype = from.dtype;
  if (to.written) {
    float* const out = to.written + number * to.stride;
    write_seen(views, lists, number, from, b, position, row, out);
    row.data = row.stored = out, row.dtype = kFloat32;
  } else if (to.seen && row.n < row.k) {
    row.stored = reinterpret_cast<const char*>(to.seen + number) + 1;
  }
  if (threadIdx.x != 0) return;
  to.listed[number] = row;
  const bool holes = row.stored != row.data;
  if (to.seen)
    to.seen[number] = {
        row.data, holes ? reinterpret_cast<const Seen::Entry*>(to.none) : nullptr, to.none, to.mapped, to.words, false};
}

template <class Op>
struct EntriesLaunch {
  Op a;
  RowsIds ids;
  ListedRows to;
  ViewLists lists;
  int32_t k = 0;
};
template <class Op>
__global__ void __launch_bounds__(kThreads, 2) list_entries(const EntriesLaunch<Op> s) {
  if (s.ids.is_map && blockIdx.x == 0) {
    const int32_t* const numbers = static_cast<const int32_t*>(s.ids.ids.data);
    const int n = int(clamped(numbers[3 * int64_t{s.k} + s.ids.V], s.k));
    list_map(s.to, reinterpret_cast<const Place*>(numbers), numbers + 2 * int64_t{s.k}, s.k, n);
  }
  each_view(s.a, blockIdx.x,
            [&](int, const auto& rows, int64_t number, const Row& row, const Ints& ids, int64_t b, int64_t at) {
              if (rows.ids) list_row(s.to, s.ids, ids, rows.views, s.lists, number, row, b, at);
            });
}

// Allocates the memory for at most `most` rows of k entries with ids, and stores its addresses in `ids` and `views`.
// make() launches the kernel that fills it. V is that of the target, or kIdsEnd if no id is to be numbered anew.
// `adds`: whether the rows are probabilities.
class EntriesRoom {
 public:
  EntriesRoom(const Tensor& like, RowsIds& ids, Views& views, int64_t k, int64_t most, int64_t V, bool adds)
      : ids_(ids), k_(k) {
    if (!ids) return;
    const bool writes = !adds && (!ids.is_map || views), masks = !adds && ids.is_map && !views;
    to_.stride = (k + kGroup - 1) / kGroup * kGroup, to_.words = chunk_count(k) * (kChunk / 32);
    to_.V = V, to_.adds = adds;
    const size_t listed = scratch_.ask<Listed>(most), places = scratch_.ask<Place>(ids.is_map ? 0 : most * k),
                 written = scratch_.ask<float>(writes ? most * to_.stride : 0),
                 repeats = scratch_.ask<int32_t>(ids.is_map ? 1 : most), seen = scratch_.ask<Seen>(masks ? most : 0),
                 mapped = scratch_.ask<uint32_t>(masks ? to_.words : 0),
                 none = scratch_.ask<int32_t>(masks ? to_.words + 1 : 0);
    scratch_.allocate(like);
    to_.listed = scratch_.at<Listed>(listed), to_.places = scratch_.at<Place>(places);
    to_.repeats = scratch_.at<int32_t>(repeats);
    if (writes) to_.written = scratch_.at<float>(written);
    if (masks) to_.seen = scratch_.at<Seen>(seen), to_.mapped = scratch_.at<uint32_t>(mapped);
    if (masks) to_.none = scratch_.at<int32_t>(none);
    views.seen = to_.seen;
    ids.listed = to_.listed;
    ids_ = ids;
  }
  // Whether the rows are copied, and the copies
  bool written() const { return to_.written; }
  RowMemory written(int64_t per_request) const {
    return {to_.written, k_, per_request * to_.stride, to_.stride, kFloat32};
  }

  template <class Op>
  void make(const char* op, const Op& a, int64_t positions, const ViewLists& lists,
            [[maybe_unused]] cudaStream_t stream) const {
    if (!ids_ || positions == 0) return;
    SPECDEC_LAUNCH(op, list_entries<Op>, positions, stream, EntriesLaunch<Op>{a, ids_, to_, lists, int32_t(k_)});
  }

 private:
  Scratch scratch_;
  ListedRows to_;
  RowsIds ids_;
  int64_t k_;
};

// Lists the entries of the draft's rows of all pairs. The result owns the memory of the lists.
template <class Pairs>
EntriesRoom list_pairs(const char* op, Pairs& a, const Tensor& like, cudaStream_t stream) {
  const EntriesRoom room(like, a.q.ids, a.q.views, a.q.V, a.N, a.p.V, !a.q_stats);
  if constexpr (kReadsIds) room.make(op, a.q, a.N, ViewLists{}, stream);
  return room;
}

}  // namespace specdec
