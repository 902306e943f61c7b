// SPDX-License-Identifier: Apache-2.0
// Penalties on tokens that a request has used before. On the CPU a Row carries a View: the request, and the position
// where its window of drafted tokens ends. cpu/penalties.cpp applies the View to entries as they are read. In CUDA a
// launch first lists the entries that change (cuda/views.cuh), and a Row refers to that list (Seen, below).
#pragma once

#include <cmath>

#include "ints.h"

namespace specdec {

struct Seen;

struct Amounts {
  float repetition, frequency, presence;
  SPECDEC_HD bool any() const { return repetition != 1 || frequency != 0 || presence != 0; }
};

struct Penalties {
  Floats repetition, frequency, presence;  // [B]; where one is null, `numbers` serves all requests
  Amounts numbers{1, 0, 0};
  // Each list: distinct ids in ascending order with their counts in the output, then -1
  const int32_t *ids = nullptr, *counts = nullptr;  // [S, H]
  int64_t S = 0, H = 0, ids_stride = 0, counts_stride = 0;
  Ints row;  // [B], the index of each request's list; null: list b is request b's
  // The windows: the drafted tokens of a chain, or the nodes of a tree. Ragged chains start at `starts`.
  Ints window;                // [B, G], [D] or [B, N]
  int64_t window_stride = 0;  // from request to request
  Ints starts;                // ragged: [B+1], clamped to [0, D]
  int64_t D = 0;
  Ints parents;  // of a tree: [B, N]
  int64_t parents_stride = 0;

#ifdef SPECDEC_IN_CUDA
  Seen* seen = nullptr;  // [positions of this side], written by cuda/views.cuh
#endif

  SPECDEC_HD explicit operator bool() const { return ids != nullptr; }
  SPECDEC_HD Amounts amounts(int64_t b) const {
    return {repetition ? repetition[b] : numbers.repetition, frequency ? frequency[b] : numbers.frequency,
            presence ? presence[b] : numbers.presence};
  }
  SPECDEC_HD int64_t list(int64_t b) const { return row ? row[b] : b; }
  // The token at position n > 0: of node n of a tree, or the n-th draft of a chain. Position 0 is before all of them.
  SPECDEC_HD int64_t token(int64_t b, int64_t n) const {
    const int64_t i = parents ? n : n - 1;
    return window.at(starts ? (start(b) + i) * window.stride : b * window_stride + i * window.stride);
  }
  SPECDEC_HD int64_t before(int64_t b, int64_t n) const {
    if (!parents) return n - 1;
    const int64_t parent = parents.at(b * parents_stride + n * parents.stride);
    return parent > 0 && parent < n ? parent : 0;
  }
  // Whether a request's amounts and the index of its list are valid. In GPU tensors nothing checked them before.
  SPECDEC_HD bool fine(int64_t b) const {
    const Amounts x = amounts(b);
    const auto finite = [](float y) { return fabsf(y) < HUGE_VALF; };
    const int64_t s = list(b);
    return x.repetition > 0 && finite(x.repetition) && finite(x.frequency) && finite(x.presence) && s >= 0 && s < S;
  }

 private:
  SPECDEC_HD int64_t start(int64_t b) const { return clamped(starts[b], D); }
};

// List s of the penalties, with s in [0, S). Its pads, -1, count as larger than every id.
struct UsedList {
  const int32_t *ids, *counts;
  int64_t H;

  SPECDEC_HD UsedList(const Penalties& p, int64_t s)
      : ids(p.ids + s * p.ids_stride), counts(p.counts + s * p.counts_stride), H(p.H) {}
  // Whether entry j is as `ids` and `counts` promise. Without branches, so that checking a list costs little beside
  // reading a row.
  SPECDEC_HD bool fine(int64_t j) const { return ascends(j) & counted(j); }
  SPECDEC_HD bool ascends(int64_t j) const {
    return (ids[j] == -1) | (j == 0 ? ids[0] >= 0 : (ids[j - 1] >= 0) & (ids[j - 1] < ids[j]));
  }
  SPECDEC_HD bool counted(int64_t j) const { return (ids[j] == -1) | (counts[j] >= 0); }
};

// How a request's penalties change a row: the tokens up to `position` of its window count. Position 0: an empty window.
struct View {
  const Penalties* penalties = nullptr;
  int32_t request = 0, position = 0;
  SPECDEC_HD explicit operator bool() const { return penalties != nullptr; }
  SPECDEC_HD bool operator==(const View& other) const {
    return penalties == other.penalties && request == other.request && position == other.position;
  }
};

#ifdef SPECDEC_IN_CUDA
// A row in memory, and the entries that penalties change, by ascending id. Entries with ids in [kSpan c, kSpan (c + 1))
// start at entries[begins[c]]. A Row whose entries change holds the address of a Seen plus one, in place of its
// data's. That address is odd, so the fast path, which needs 16-byte alignment, leaves the row to the general one.
struct Seen {
  static constexpr int kSpan = 256;
  struct alignas(8) Entry {
    int32_t id;
    float value;
  };
  const void* data;
  const Entry* entries;   // none: the request sees the row as it lies
  const int32_t* begins;  // [spans + 1], for the spans of all chunks of the row
  bool invalid;           // all entries are NaN
};
#endif

}  // namespace specdec
