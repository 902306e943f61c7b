// SPDX-License-Identifier: Apache-2.0
// Takes and checks the mapping of lists to requests or positions (Lists in core/window.h)
#pragma once

#include "check.h"

namespace specdec {

// The positions of B requests. `each`: positions per request, -1 if ragged. `all`: positions in total. In ops on rows
// [N, V], each row counts as a request with one position.
struct Positions {
  int64_t B, each, all;
  const char* shape;  // for errors: the shape of a `row` by position. Null: requests have one position
};

// Sets which of S lists each request or position has: by the indices in `row`. Without `row`, the lists are in the
// order of the requests or positions.
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

// Checks the indices of the lists of present requests, and calls f(index) for each that is not -1.
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
