// SPDX-License-Identifier: Apache-2.0
// The window of a row: the tokens that were drafted before it. These are the earlier drafts of a chain, or a node of a
// tree and its ancestors without the root. Also the mapping of lists (of a bias or a mask) to requests or positions.
#pragma once

#include "ints.h"

namespace specdec {

struct Window {
  Ints tokens;         // of a chain: [B, G], or ragged [D]; of a tree: [B, N]
  int64_t stride = 0;  // of tokens, from request to request
  Ints starts;         // ragged: [B+1], where each request's tokens start; clamped to [0, D]
  int64_t D = 0;
  Ints parents;  // of a tree: [B, N]
  int64_t parents_stride = 0;

  SPECDEC_HD int64_t start(int64_t b) const { return clamped(starts[b], D); }
  // The token at position n > 0: that of node n of a tree, or the n-th draft of a chain. Position 0 comes before all
  // drafted tokens.
  SPECDEC_HD int64_t token(int64_t b, int64_t n) const {
    const int64_t i = parents ? n : n - 1;
    return tokens.at(starts ? (start(b) + i) * tokens.stride : b * stride + i * tokens.stride);
  }
  // The position of the token before the one at position n; 0 if there is none. It is always less than n, so a loop
  // over a window ends whatever values `parents` holds.
  SPECDEC_HD int64_t before(int64_t b, int64_t n) const {
    if (!parents) return n - 1;
    const int64_t parent = parents.at(b * parents_stride + n * parents.stride);
    return parent > 0 && parent < n ? parent : 0;
  }
};

// S lists. Each request, or each position, has one of them or none.
struct Lists {
  int64_t S = 0;
  // The index of each request's or position's list, -1: none. Null: list i is that of request or position i.
  Ints row;
  // Both strides count elements of `row`, or lists if `row` is null. A position_stride of 0 means that a request has
  // one list for all its positions.
  int64_t request_stride = 1, position_stride = 0;

  // The index of the list at a position of request b
  SPECDEC_HD int64_t list(const Window& window, int64_t b, int64_t position) const {
    const bool ragged = position_stride != 0 && window.starts;
    const int64_t first = ragged ? (window.start(b) + b) * position_stride : b * request_stride;
    const int64_t at = first + position * position_stride;
    return row ? row.at(at) : at;
  }
};

}  // namespace specdec
