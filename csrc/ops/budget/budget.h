// SPDX-License-Identifier: Apache-2.0
// Spreads a budget of drafts over a batch. A slot is one draft of one request. Its survival is the probability that
// this draft and all before it are accepted. The slots of largest survival are kept; those of a request are a prefix of
// its drafts.
//
// Slots are ordered by a key: survival, then position, then request. The best slot has the smallest key. Along a
// request, survival falls; if it rises, the smallest value so far counts. So keys rise, and the slots up to any key are
// a prefix of each request. A radix search finds the key of the last slot that is taken, as eight digits of eight bits.
//
// Lanes share the work: the threads of a block in CUDA, one lane on the CPU. All lanes together must call sync() and
// scan(x), which returns the sums of x over the lanes before this one and over all.
#pragma once

#include <cmath>

#include "../../core/filters.h"
#include "../../core/ints.h"

namespace specdec {

constexpr int64_t kMaxSlots = int64_t{1} << 30;  // B * G; counts fit an int
constexpr int kSlotDigits = 256;

struct Budget {
  int64_t B = 0;
  int G = 0;
  int64_t total = 0;
  Floats survival;  // [B, G]
  int64_t strides[2] = {};
  Ints num_drafts;          // [B]; null: G
  int32_t* kept = nullptr;  // [B]

  SPECDEC_HD int length(int64_t b) const { return num_drafts ? int(clamped(num_drafts[b], G)) : G; }
};

struct SlotSearch {
  int count[kSlotDigits];  // how many slots have each digit
  int digit, before;       // the digit of the last slot taken, and how many slots have a smaller one
};

// Calls visit(key) for the slots of request b in their order, until it returns false.
template <class Visit>
SPECDEC_HD void for_slots(const Budget& a, int64_t b, const Visit& visit) {
  float least = HUGE_VALF;
  for (int i = 0, n = a.length(b); i < n; ++i) {
    const float x = a.survival[b * a.strides[0] + i * a.strides[1]];
    const float worth = x > 0 ? x : 0.0f;  // NaN too counts as 0
    least = worth < least ? worth : least;
    if (!visit(uint64_t{~ordered(least)} << 32 | uint64_t(i * a.B + b))) return;
  }
}

// The number of slots
template <class Lanes>
SPECDEC_HD int count_slots(const Budget& a, const Lanes& lanes) {
  int n = 0;
  for (int64_t b = lanes.lane(); b < a.B; b += Lanes::kWidth) n += a.length(b);
  return lanes.scan(n).total;
}

// The `wanted`-th smallest key, or a key between it and the next one. `wanted` is at least 1 and less than the number
// of slots.
template <class Lanes>
SPECDEC_HD uint64_t find_last(const Budget& a, int wanted, SlotSearch& s, const Lanes& lanes) {
  uint64_t found = 0, known = 0;  // the key's digits so far, and their mask
  for (int shift = 56; shift >= 0; shift -= 8) {
    const uint64_t mask = uint64_t{kSlotDigits - 1} << shift;
    if (shift < 32 && (a.B * a.G - 1) >> shift == 0) {  // these bits are 0 in all keys
      known |= mask;
      continue;
    }
    for (int i = lanes.lane(); i < kSlotDigits; i += Lanes::kWidth) s.count[i] = 0;
    lanes.sync();
    for (int64_t b = lanes.lane(); b < a.B; b += Lanes::kWidth)
      for_slots(a, b, [&](uint64_t key) {
        if ((key & known) == found) lanes.add(s.count + (key >> shift & (kSlotDigits - 1)));
        return (key & known) <= found;
      });
    lanes.sync();
    int before = 0;
    for (int first = 0; first < kSlotDigits; first += Lanes::kWidth) {
      const int own = s.count[first + lanes.lane()];
      const auto at = lanes.scan(own);
      const int upto = before + at.before + own;
      if (upto >= wanted && upto - own < wanted) s.digit = first + lanes.lane(), s.before = upto - own;
      before += at.total;
    }
    lanes.sync();
    const int digit = s.digit;
    wanted -= s.before;
    found |= uint64_t(digit) << shift, known |= mask;
    const bool all = wanted == s.count[digit];  // every slot with these digits is taken
    lanes.sync();
    if (all) break;
  }
  return found | ~known;
}

template <class Lanes>
SPECDEC_HD void spread(const Budget& a, SlotSearch& s, const Lanes& lanes) {
  const int slots = count_slots(a, lanes);
  // There is no search if the budget is 0, which has no last slot, or if all slots fit.
  const bool none = a.total == 0;
  const uint64_t last = none || a.total >= slots ? UINT64_MAX : find_last(a, int(a.total), s, lanes);
  for (int64_t b = lanes.lane(); b < a.B; b += Lanes::kWidth) {
    int n = 0;
    for_slots(a, b, [&](uint64_t key) {
      n += key <= last;
      return key <= last;
    });
    a.kept[b] = none ? 0 : n;
  }
}

}  // namespace specdec
