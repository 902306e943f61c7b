// SPDX-License-Identifier: Apache-2.0
// Views. A view is a request's changes to a row before sampling: a bias on some ids, then penalties on ids that were
// used before, then a mask. On the CPU a Row carries a View, and cpu/views.cpp changes entries as they are read. In
// CUDA an extra launch first lists the entries that bias and penalties change (cuda/views.cuh), and a Row refers to
// that list (Seen, below).
#pragma once

#include "bias.h"
#include "mask.h"
#include "penalties.h"

namespace specdec {

struct Seen;

// The views of all rows of one side, target or draft
struct Views {
  Bias bias;
  Penalties penalties;
  Mask mask;
  Window window;
#ifdef SPECDEC_IN_CUDA
  Seen* seen = nullptr;  // [positions of this side], written by cuda/views.cuh
#endif

  SPECDEC_HD explicit operator bool() const { return bias || penalties || mask; }
  SPECDEC_HD bool penalises(int64_t b) const { return penalties && penalties.amounts(b).any(); }
  // Whether a request's amounts and the indices of its lists are valid. For GPU tensors, the host cannot check this.
  SPECDEC_HD bool fine(int64_t b, int64_t position) const {
    const int64_t s = bias_list(b, position), m = mask_list(b, position);
    return (!penalties || penalties.fine(b)) && s >= -1 && s < bias.S && m >= -1 && m < mask.S;
  }
  // The indices of the bias list and of the mask at a position of request b; -1: none
  SPECDEC_HD int64_t bias_list(int64_t b, int64_t position) const { return bias ? bias.list(window, b, position) : -1; }
  SPECDEC_HD int64_t mask_list(int64_t b, int64_t position) const { return mask ? mask.list(window, b, position) : -1; }
  // Whether request b changes a row at a position
  SPECDEC_HD bool change(int64_t b, int64_t position) const {
    return penalises(b) || bias_list(b, position) >= 0 || mask_list(b, position) >= 0;
  }
};

// The request and position that a row is read for. They select the bias, the mask, and the window of drafted tokens
// that penalties also count. At position 0 the window is empty.
struct View {
  const Views* of = nullptr;  // null: no view
  int32_t request = 0, position = 0;
  SPECDEC_HD explicit operator bool() const { return of != nullptr; }
  SPECDEC_HD bool operator==(const View& other) const {
    return of == other.of && request == other.request && position == other.position;
  }
};

#ifdef SPECDEC_IN_CUDA
// A row in memory, its mask, and the entries that bias and penalties change, with their new values. The entries are in
// ascending order of ids; those with ids in [kSpan c, kSpan (c + 1)) start at entries[begins[c]]. An id in the list
// that the mask forbids has -inf. A Row whose entries change holds the address of a Seen plus one instead of the
// address of its data. That address is odd, so the fast path, which needs 16-byte alignment, leaves the row to the
// general path.
struct Seen {
  static constexpr int kSpan = 256;
  struct alignas(8) Entry {
    int32_t id;
    float value;
  };
  const void* data;
  const Entry* entries;   // null: nothing changes
  const int32_t* begins;  // [spans + 1], for the spans of all chunks of the row
  const uint32_t* words;  // the mask, W words; null: none
  int64_t W;
  bool invalid;  // all entries are NaN
};
#endif

}  // namespace specdec
