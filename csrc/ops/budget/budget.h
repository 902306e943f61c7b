// SPDX-License-Identifier: Apache-2.0
// Spreads a budget of drafts over a batch: the slots of largest survival, each request's a prefix.
//
// Slots are ordered by a key: survival, then position, then request, the best first. Survival falls along a request
// (where it rises, what stood before counts), so keys rise, and slots up to any key are prefixes. A radix search finds
// the key of the last slot that is taken. Its eight digits have eight bits each.
//
// Lanes share the work: the threads of a block, or one on the CPU. All of them together call sync(), and scan(x), which
// sums over the lanes before this one and over all.
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
  int count[kSlotDigits];  // slots by their digit
  int digit, before;       // the digit of the last slot taken, and how many slots have smaller ones
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

// The `wanted`-th smallest key. At least one, and fewer than all, are wanted.
template <class Lanes>
SPECDEC_HD uint64_t find_last(const Budget& a, int wanted, SlotSearch& s, const Lanes& lanes) {
  uint64_t found = 0, known = 0;  // the key's digits so far, and their mask
  for (int shift = 56; shift >= 0; shift -= 8) {
    const uint64_t mask = uint64_t{kSlotDigits - 1} << shift;
    if (shift < 32 && (a.B * a.G - 1) >> shift == 0) {  // no slot has other bits than 0 here
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
  // Without a search for a budget of 0, which has no last slot, or for one that all slots fit
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
