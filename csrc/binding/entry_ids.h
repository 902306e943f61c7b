// SPDX-License-Identifier: Apache-2.0
// The ids of a draft's entries as torch's dispatcher passes them: int32 or int64 ids of the same shape as the logits,
// or the numbers of a vocab_map, as uint32.
#pragma once

#include "../core/rows.h"
#include "check.h"

namespace specdec {

#ifndef SPECDEC_IN_CUDA
// The memory of n rows of k entry ids each
struct EntryIdsMemory {
  std::vector<EntryIds> rows;
  std::vector<EntryIds::Place> places;  // [rows, k]

  EntryIdsMemory(int64_t n, int64_t k) : rows(n), places(n * k) {}
};

// Sorts the ids of a sparse row of k entries into `places` [k].
inline EntryIds sorted_ids(const Op& op, Name name, const Ints& ids, int64_t k, EntryIds::Place* places) {
  EntryIds row;
  row.ids = ids, row.k = k, row.places = places;
  for (int64_t j = 0; j < k; ++j) {
    const int64_t id = ids[j];
    check(id < kIdsEnd, op, name, " must be < 2^24, got ", id);
    if (id >= 0) places[row.n++] = {int32_t(id), int32_t(j)};
  }
  const auto before = [](const EntryIds::Place& a, const EntryIds::Place& b) {
    return a.id != b.id ? a.id < b.id : a.at < b.at;
  };
  if (!std::is_sorted(places, places + row.n, before)) std::sort(places, places + row.n, before);
  for (int64_t j = 1; j < row.n; ++j)
    row.repeats |= places[j].id == places[j - 1].id, row.ascends &= places[j].at > places[j - 1].at;
  if (row.n > 0) row.end = places[row.n - 1].id + 1;
  return row;
}

// The ids of a map. `numbers` [3 Vd + V + 1] is VocabMap.packed (specdec_kernels/vocab_map.py).
inline EntryIds ids_of_map(const Op& op, Name name, const int32_t* numbers, int64_t Vd, int64_t V) {
  const char* const wanted = " must be made by vocab_map, got other numbers";
  const int32_t* const table = numbers + 2 * Vd;
  EntryIds row;
  row.places = reinterpret_cast<const EntryIds::Place*>(numbers);
  row.ids = {table, 1, false}, row.k = Vd, row.n = numbers[3 * Vd + V];
  check(row.n >= 0 && row.n <= Vd, op, name, wanted);
  const EntryIds::Place* const places = row.places;  // loops without branches are vectorised
  uint32_t good = 1, differ = 1, ascend = 1;
  for (int64_t j = 0; j < row.n; ++j)
    good &= uint32_t(uint32_t(places[j].id) < uint32_t(V)) & uint32_t(uint32_t(places[j].at) < uint32_t(Vd));
  for (int64_t j = 1; j < row.n; ++j) {
    good &= uint32_t(places[j - 1].id <= places[j].id);
    differ &= uint32_t(places[j - 1].id != places[j].id);
    ascend &= uint32_t(places[j - 1].at < places[j].at);
  }
  for (int64_t j = 0; j < Vd; ++j) good &= uint32_t(table[j] < V);
  row.repeats = !differ, row.ascends = ascend;
  check(good, op, name, wanted);
  if (row.n > 0) row.end = row.places[row.n - 1].id + 1;
  return row;
}
#endif

// Checks the ids of a side, and stores them in `to`. of: the side's logits; ids have the same shape. each(f) calls
// f(position, offset) for every row that the op may read: the offset at which the row's ids begin, in elements.
// positions: the number of positions.
template <class Each>
void take_ids(const Op& op, const char* side, RowsIds& to, const OptTensor& given, const Tensor* of,
              [[maybe_unused]] int64_t positions, [[maybe_unused]] const Each& each) {
  if (!given) return;
  check(of, op, side, ".ids need ", side, ".logits, got none");
  const Tensor &t = *given, &logits = *of;
  const int64_t k = logits.size(logits.dim() - 1);
  to.is_map = t.scalar_type() == ScalarType::UInt32;
  const Name name(side, to.is_map ? "vocab_map" : "ids");
  check_device(op, name, t);
  if (to.is_map) {
    check_dims(op, name, t, "P");
    const int64_t V = t.size(0) - 3 * k - 1;
    check(V >= 1 && V <= kIdsEnd && t.is_contiguous(), op, name, " must be a map of Vq=", k,
          " ids, made by vocab_map, got ", bracketed(t.sizes()), " numbers");
    to.ids = {data_of(t), 1, false}, to.V = V;
#ifndef SPECDEC_IN_CUDA
    if (!values_at_hand(op)) return;
    const auto memory = std::make_shared<EntryIdsMemory>(1, 0);
    memory->rows[0] = ids_of_map(op, name, static_cast<const int32_t*>(to.ids.data), k, V);
    to.rows = {memory, memory->rows.data()};
#endif
    return;
  }
  const int64_t dim = t.dim();
  std::vector<Size> shape;
  for (int64_t i = 0; i < logits.dim(); ++i) shape.push_back({logits.size(i)});
  check_shape(op, name, t, shape);
  to.ids = ints(op, name, t, t.stride(dim - 1));
  to.batch_stride = dim == 3 ? t.stride(0) : 0, to.row_stride = t.stride(dim - 2);
#ifndef SPECDEC_IN_CUDA
  if (!values_at_hand(op)) return;
  const auto memory = std::make_shared<EntryIdsMemory>(positions, k);
  each([&](int64_t position, int64_t offset) {
    const char* const from = static_cast<const char*>(to.ids.data) + offset * (to.ids.wide ? 8 : 4);
    memory->rows[position] =
        sorted_ids(op, name, {from, to.ids.stride, to.ids.wide}, k, memory->places.data() + position * k);
  });
  to.rows = {memory, memory->rows.data()};
#endif
}

// The same for rows [N, k].
inline void take_ids(const Op& op, const char* side, RowsIds& to, const OptTensor& given, const Tensor& logits,
                     const Present& present) {
  take_ids(op, side, to, given, &logits, logits.size(0), [&](const auto& f) {
    for (int64_t n = 0; n < present.of(logits.size(0)); ++n) f(n, n * to.row_stride);
  });
}

}  // namespace specdec
