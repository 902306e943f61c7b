// SPDX-License-Identifier: Apache-2.0
// Penalties as the dispatcher passes them
#pragma once

#include <cmath>
#include <tuple>

#include "../core/penalties.h"
#include "used_tables.h"

namespace specdec {

struct GivenPenalties {
  const char* side;  // in errors
  const OptTensor &repetition, &frequency, &presence;
  const OptNumbers& numbers;
  const OptTensor &marks, &counts, &row;
};

#define SPECDEC_PENALTIES_ARGUMENTS(prefix)                                                                   \
  const OptTensor &prefix##repetition, const OptTensor &prefix##frequency, const OptTensor &prefix##presence, \
      const OptNumbers &prefix##penalty_numbers, const OptTensor &prefix##history_marks,                      \
      const OptTensor &prefix##history_counts, const OptTensor &prefix##history_row
constexpr size_t kPenaltiesArguments = 7;
#define SPECDEC_GIVEN_PENALTIES(side, prefix)                                                                      \
  GivenPenalties {                                                                                                 \
    side, prefix##repetition, prefix##frequency, prefix##presence, prefix##penalty_numbers, prefix##history_marks, \
        prefix##history_counts, prefix##history_row                                                                \
  }

inline const int32_t* history_pointer(const Op& op, Name name, const Tensor& t) {
  check_device(op, name, t);
  check_dims(op, name, t, "S, H");
  check_dtype(op, name, t, ScalarType::Int, "int32");
  check_adjacent(op, name, t);
  return static_cast<const int32_t*>(data_of(t));
}

// Checks list s of used ids: distinct ids in ascending order with their counts, padded with -1.
inline void check_history(const Op& op, Name ids, Name counts, const UsedList& list, int64_t s) {
  int32_t fine = list.H == 0 || list.fine(0);  // 32 bits, as the list's entries, so that the loop is vectorised
  for (int64_t j = 1; j < list.H; ++j) fine &= list.fine(j);
  for (int64_t j = 0; !fine && j < list.H; ++j) {
    check(list.ascends(j), op, ids, " must ascend and end with -1, got ", list.ids[j > 0 ? j - 1 : 0], " then ",
          list.ids[j], " in list ", s);
    check(list.counted(j), op, counts, " must be >= 0, got ", list.counts[j], " in list ", s);
  }
}

// `there`: how many requests or rows have amounts and histories that the host can read
inline void check_values(const Op& op, const char* side, const Penalties& p, int64_t there) {
  static const char* const fields[] = {"penalties.repetition", "penalties.frequency", "penalties.presence"};
  const Floats* const tensors[] = {&p.repetition, &p.frequency, &p.presence};
  const float* const numbers[] = {&p.numbers.repetition, &p.numbers.frequency, &p.numbers.presence};
  for (int i = 0; i < 3; ++i) {
    const bool each = bool(*tensors[i]);
    for (int64_t b = 0; b < (each ? there : 1); ++b) {
      const float x = each ? (*tensors[i])[b] : *numbers[i];
      check(std::isfinite(x) && (i > 0 || x > 0), op, Name(side, fields[i]), " must be finite", i ? "" : " and > 0",
            ", got ", x, At{each ? b : -1});
    }
  }
  for (int64_t b = 0; b < there; ++b) {
    const int64_t s = p.history(b);
    check(s >= 0 && s < p.S, op, Name(side, "penalties.row"), " must be in [0, ", p.S, "), got ", s, " at index ", b);
    if (p.ids) check_history(op, Name(side, "penalties.ids"), Name(side, "penalties.counts"), UsedList(p, s), s);
  }
}

// Takes the histories: counts [S, H] and `marks`. If the histories are lists, marks are ids [S, H], int32. If they are
// tables, marks are the bits of the prompt's tokens, [S, ceil(H / 32)], uint32.
inline void take_histories(const Op& op, const GivenPenalties& given, int64_t N, Penalties& p) {
  const auto named = [&](const char* field) { return Name(given.side, field); };
  check(given.marks && given.counts, op, named("penalties.counts"), " must be given with ids or with prompt_bits, got ",
        given.counts ? "it alone" : "none");
  p.counts = history_pointer(op, named("penalties.counts"), *given.counts);
  p.S = given.counts->size(0), p.H = given.counts->size(1), p.counts_stride = given.counts->stride(0);
  const Tensor& marks = *given.marks;
  const bool table = marks.scalar_type() == ScalarType::UInt32;
  const Name name = named(table ? "penalties.prompt_bits" : "penalties.ids");
  check_device(op, name, marks);
  if (!table) check_dtype(op, name, marks, ScalarType::Int, "int32");
  check_shape(op, name, marks, {{"S", p.S}, {table ? "ceil(H/32)" : "H", table ? (p.H + 31) / 32 : p.H}});
  check_adjacent(op, name, marks);
  const void* const pointer = data_of(marks);
  if (table)
    p.prompt_bits = static_cast<const uint32_t*>(pointer), p.bits_stride = marks.stride(0);
  else
    p.ids = static_cast<const int32_t*>(pointer), p.ids_stride = marks.stride(0);
  // An empty tensor's pointer may be null, which would mean that there are no penalties.
  if (p.S == 0 || p.H == 0) p.counts = p.ids = reinterpret_cast<const int32_t*>(""), p.prompt_bits = nullptr;
  if (given.row) {
    check_shape(op, named("penalties.row"), *given.row, {N});
    p.row = ints(op, named("penalties.row"), *given.row, given.row->stride(0));
  } else {
    check(p.S == N, op, named("penalties.counts"), " must be of ", N, " histories, or penalties.row be given, got ",
          p.S);
  }
}

// The penalties of N requests or rows
inline Penalties penalties(const Op& op, const GivenPenalties& given, int64_t N, const Present& present) {
  const auto named = [&](const char* field) { return Name(given.side, field); };
  const Numbers numbers(op, named("penalties.numbers"), given.numbers, 3);
  const bool any =
      given.repetition || given.frequency || given.presence || numbers.data || given.marks || given.counts || given.row;
  Penalties p;
  if (!any) return p;
  take_histories(op, given, N, p);
  const std::tuple<const char*, const OptTensor&, Floats&, float&> each[] = {
      {"penalties.repetition", given.repetition, p.repetition, p.numbers.repetition},
      {"penalties.frequency", given.frequency, p.frequency, p.numbers.frequency},
      {"penalties.presence", given.presence, p.presence, p.numbers.presence}};
  for (int i = 0; i < 3; ++i) {
    const auto& [field, tensor, taken, number] = each[i];
    check(!tensor || !numbers.has(i), op, named(field), " must be a tensor or a number, got both");
    taken = floats_per_row(op, named(field), tensor, N);
    if (numbers.has(i)) number = float(numbers[i]);
  }
  check_values(op, given.side, p, values_at_hand(op) ? present.of(N) : 0);
  if (p.prompt_bits && values_at_hand(op)) list_tables(op, given.side, p, present.of(N));
  return p;
}

}  // namespace specdec
