// SPDX-License-Identifier: Apache-2.0
// Lists of which every request or every position has one or none (core/window.h)
#pragma once

#include "check.h"

namespace specdec {

// The positions of a call's requests: `each` of every request, or ragged positions, `all` in number. Ops on rows [N, V]
// have one of every row.
struct Positions {
  int64_t B, each, all;
  const char* shape;  // of one number for every position, in errors; null: requests have one position
};

// Sets whose S lists these are: of requests, of positions, or those that `row` names.
inline void take_lists(const Op& op, Name name, Name row_name, Lists& lists, int64_t S, const OptTensor& row,
                       const Positions& positions) {
  const auto& [B, each, all, shape] = positions;
  const bool ragged = each < 0;
  lists.S = S;
  if (!row) {
    const bool of_positions = shape && S == all && S != B;
    check(S == B || of_positions, op, name, " must be of ", B, " lists", shape ? ", or " : "",
          shape ? std::to_string(all) : "", ", or ", row_name.field, " be given, got ", S);
    if (of_positions) lists.request_stride = ragged ? 0 : each, lists.position_stride = 1;
    return;
  }
  lists.row = ints(op, row_name, *row, 1);
  if (row->dim() == 1 && row->size(0) == B) {
    lists.request_stride = row->stride(0);
    return;
  }
  const bool fits = shape && (ragged ? row->dim() == 1 && row->size(0) == all
                                     : row->dim() == 2 && row->size(0) == B && row->size(1) == each);
  check(fits, op, row_name, " must have shape [", B, "]", shape ? " or " : "", shape ? shape : "", ", got ",
        bracketed(row->sizes()));
  lists.request_stride = ragged ? 0 : row->stride(0), lists.position_stride = row->stride(ragged ? 0 : 1);
}

// Checks the numbers of the lists of the requests that are present, and calls f(number) for each that has one.
template <class F>
void for_lists(const Op& op, Name row_name, const Lists& lists, const Window& window, const Positions& positions,
               const Present& present, const F& f) {
  for (int64_t b = 0; b < present.of(positions.B); ++b) {
    const int64_t there = lists.position_stride == 0 ? 1
                          : positions.each >= 0      ? positions.each
                                                     : window.starts[b + 1] - window.starts[b] + 1;
    for (int64_t i = 0; i < there; ++i) {
      const int64_t s = lists.list(window, b, i);
      check(s >= -1 && s < lists.S, op, row_name, " must be in [-1, ", lists.S, "), got ", s, " of request ", b);
      if (s >= 0) f(s);
    }
  }
}

}  // namespace specdec
