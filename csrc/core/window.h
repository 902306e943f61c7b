// SPDX-License-Identifier: Apache-2.0
// The tokens that were drafted before a row: earlier drafts of a chain, or a node of a tree and its ancestors.
#pragma once

#include "ints.h"

namespace specdec {

struct Window {
  Ints tokens;         // [B, G], [D] or [B, N]
  int64_t stride = 0;  // from request to request
  Ints starts;         // ragged: [B+1], clamped to [0, D]
  int64_t D = 0;
  Ints parents;  // of a tree: [B, N]
  int64_t parents_stride = 0;

  SPECDEC_HD int64_t start(int64_t b) const { return clamped(starts[b], D); }
  // The token at position n > 0: of node n of a tree, or the n-th draft of a chain. Position 0 is before all of them.
  SPECDEC_HD int64_t token(int64_t b, int64_t n) const {
    const int64_t i = parents ? n : n - 1;
    return tokens.at(starts ? (start(b) + i) * tokens.stride : b * stride + i * tokens.stride);
  }
  SPECDEC_HD int64_t before(int64_t b, int64_t n) const {
    if (!parents) return n - 1;
    const int64_t parent = parents.at(b * parents_stride + n * parents.stride);
    return parent > 0 && parent < n ? parent : 0;
  }
};

}  // namespace specdec
