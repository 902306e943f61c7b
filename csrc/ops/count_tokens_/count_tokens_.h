// SPDX-License-Identifier: Apache-2.0
// Merges the tokens that a step emitted into the lists that penalties read, in place.
//
// Lanes share the work on a request: the threads of a block in CUDA, one lane on the CPU. Some functions of Lanes must
// be called by all lanes together: sync(); scan(x), the sums of x over the lanes before this one and over all; min(x);
// ids_in(list), the number of ids in a list, or -1 if it is invalid; named_before(a, b), whether an earlier request has
// b's list.
//
// Memory traffic: a list is read once (8 bytes per id, 4 per -1). Its entries after the first new id are read and
// written once more (16 bytes each). If ids must leave a full list, its counts are read about 2 log2(c + 1) + 3 times
// more, where c is the largest count that leaves, and its entries once more.
#pragma once

#include "../../core/penalties.h"
#include "../../core/status.h"

namespace specdec {

constexpr int kMaxCounted = 1024;                  // the most tokens of a request in one call
constexpr int32_t kNoToken = INT32_MAX;            // sorts after every id
constexpr int64_t kMostCounted = INT32_MAX;        // counts saturate
constexpr int64_t kMaxHistory = int64_t{1} << 30;  // entries of a list: their number fits an int, even with new ids

// The tokens of one request
struct StepTokens {
  int32_t sorted[kMaxCounted];
  // The distinct ids that the list does not have, ascending; how often each was emitted; how many ids of the list are
  // less
  int32_t id[kMaxCounted], times[kMaxCounted], below[kMaxCounted];
};

struct CountTokens {
  int64_t B = 0, S = 0;
  int H = 0, n = 0;
  int32_t *ids = nullptr, *counts = nullptr;  // [S, H]
  int64_t ids_stride = 0, counts_stride = 0;
  Ints tokens;  // [B, n]
  int64_t token_strides[2] = {};
  Ints num_tokens;            // [B]; null: up to the first -1
  Ints row;                   // [B], the index of each request's list, -1: absent; null: list b is request b's
  int32_t* status = nullptr;  // [B]

  SPECDEC_HD int64_t list(int64_t b) const { return row ? row[b] : b; }
  SPECDEC_HD UsedList used(int64_t s) const { return {ids + s * ids_stride, counts + s * counts_stride, H}; }
  SPECDEC_HD int64_t token(int64_t b, int i) const { return tokens.at(b * token_strides[0] + i * token_strides[1]); }
};

// The list of a request while it is changed: `length` ids, then -1
struct CountedList {
  int32_t *ids, *counts;
  int length;

  SPECDEC_HD void put(int j, int32_t id, int32_t count) const { ids[j] = id, counts[j] = count; }
};

SPECDEC_HD int32_t saturated(int64_t count) { return int32_t(count < kMostCounted ? count : kMostCounted); }

// How many of the request's tokens count: num_tokens, or those before the first -1
template <class Lanes>
SPECDEC_HD int emitted(const CountTokens& a, int64_t b, const Lanes& lanes) {
  if (a.num_tokens) return int(clamped(a.num_tokens[b], a.n));
  int end = a.n;
  for (int i = lanes.lane(); i < end; i += Lanes::kWidth) {
    if (a.token(b, i) == -1) end = i;
  }
  return lanes.min(end);
}

// Sorts the tokens that count, by a bitonic network. Tokens that are no ids become kNoToken. Returns how many entries
// of `sorted` are set, a power of two: those after the last token are kNoToken, too.
template <class Lanes>
SPECDEC_HD int sort_tokens(const CountTokens& a, int64_t b, int32_t* sorted, const Lanes& lanes) {
  const int n = emitted(a, b, lanes);
  int size = 1;
  while (size < n) size *= 2;
  for (int i = lanes.lane(); i < size; i += Lanes::kWidth) {
    const int64_t v = i < n ? a.token(b, i) : -1;
    sorted[i] = v >= 0 && v < kIdsEnd ? int32_t(v) : kNoToken;
  }
  lanes.sync();
  for (int run = 2; run <= size; run *= 2) {
    for (int step = run / 2; step > 0; step /= 2) {
      for (int pair = lanes.lane(); pair < size / 2; pair += Lanes::kWidth) {
        const int i = pair + (pair & ~(step - 1));  // the first entry of the pair; the other one is `step` after it
        const int32_t x = sorted[i], y = sorted[i + step];
        if (x != y && (x > y) == ((i & run) == 0)) sorted[i] = y, sorted[i + step] = x;
      }
      lanes.sync();
    }
  }
  return size;
}

// Adds tokens that are in the list to its counts. Collects the other ids in `step`, and returns how many there are.
template <class Lanes>
SPECDEC_HD int count_known(const CountedList& list, int size, StepTokens& step, const Lanes& lanes) {
  int fresh = 0;
  for (int first = 0; first < size; first += Lanes::kWidth) {
    const int i = first + lanes.lane();
    const int32_t v = i < size ? step.sorted[i] : kNoToken;
    bool is_new = false;
    int times = 0, j = 0;
    if (v != kNoToken && (i == 0 || step.sorted[i - 1] != v)) {
      while (i + times < size && step.sorted[i + times] == v) ++times;
      j = lanes.place_in(list.ids, list.length, v);
      is_new = j == list.length || list.ids[j] != v;
      if (!is_new) list.counts[j] = saturated(int64_t{list.counts[j]} + times);
    }
    const auto at = lanes.scan(int(is_new));
    if (is_new) {
      const int k = fresh + at.before;
      step.id[k] = v, step.times[k] = times, step.below[k] = j;
    }
    fresh += at.total;
  }
  lanes.sync();
  return fresh;
}

// The entries of a list and the new ids, as one sequence in ascending order. A place is an index in this sequence.
template <class Lanes>
struct Together {
  const CountedList& list;
  const StepTokens& step;
  int fresh;
  const Lanes& lanes;

  SPECDEC_HD int size() const { return list.length + fresh; }
  SPECDEC_HD int place_of_listed(int j) const { return j + lanes.place_in(step.id, fresh, list.ids[j]); }
  SPECDEC_HD int place_of_new(int k) const { return step.below[k] + k; }
  SPECDEC_HD int32_t count_at(int place) const {
    int first = 0, end = fresh;  // the first new id that is not before `place`
    while (first < end) {
      const int middle = (first + end) / 2;
      if (place_of_new(middle) < place)
        first = middle + 1;
      else
        end = middle;
    }
    return first < fresh && place_of_new(first) == place ? step.times[first] : list.counts[place - first];
  }
  // How many entries have at most this count
  SPECDEC_HD int up_to(int64_t count) const {
    int n = 0;
    for (int j = lanes.lane(); j < list.length; j += Lanes::kWidth) n += list.counts[j] <= count;
    for (int k = lanes.lane(); k < fresh; k += Lanes::kWidth) n += step.times[k] <= count;
    return lanes.scan(n).total;
  }
};

// The entries that stay: those with a larger count than `count`, and those with this count at a place before `end`
struct Kept {
  int64_t count;
  int end;
};

// Chooses the entries that stay if `drop` of them must leave. Those with the smallest counts leave; among equal counts,
// the highest ids.
template <class Lanes>
SPECDEC_HD Kept choose(const Together<Lanes>& all, int drop) {
  int64_t below = -1, most = 0;  // the largest count that leaves is in (below, most] after the loop
  while (most < kMostCounted && all.up_to(most) < drop) below = most, most = 2 * most + 1;
  while (below + 1 < most) {
    const int64_t middle = below + (most - below) / 2;
    if (all.up_to(middle) < drop)
      below = middle;
    else
      most = middle;
  }
  int left = drop - all.up_to(most - 1), end = all.size();
  for (int last = all.size() - 1; last >= 0 && left > 0; last -= Lanes::kWidth) {
    const int place = last - all.lanes.lane();
    const bool leaves = place >= 0 && all.count_at(place) == most;
    const auto at = all.lanes.scan(int(leaves));
    if (leaves && at.before < left) end = place;
    left -= at.total;
  }
  return {most, all.lanes.min(end)};
}

// Removes the entries of the list, and the new ids, that do not stay. Returns how many new ids stay.
template <class Lanes>
SPECDEC_HD int remove_others(const Together<Lanes>& all, const Kept& kept, CountedList& list, StepTokens& step) {
  const Lanes& lanes = all.lanes;
  int length = 0, fresh = 0;
  for (int first = 0; first < list.length; first += Lanes::kWidth) {
    const int j = first + lanes.lane();
    const int32_t id = j < list.length ? list.ids[j] : -1, count = j < list.length ? list.counts[j] : -1;
    const bool stays = count > kept.count || (count == kept.count && all.place_of_listed(j) < kept.end);
    const auto at = lanes.scan(int(stays));  // all lanes have read their entries before one of them is written
    if (stays && length + at.before != j) list.put(length + at.before, id, count);
    length += at.total;
  }
  lanes.sync();
  for (int first = 0; first < all.fresh; first += Lanes::kWidth) {
    const int k = first + lanes.lane();
    const int32_t id = k < all.fresh ? step.id[k] : -1, times = k < all.fresh ? step.times[k] : -1;
    const bool stays = times > kept.count || (times == kept.count && all.place_of_new(k) < kept.end);
    const auto at = lanes.scan(int(stays));
    if (stays) {
      const int to = fresh + at.before;
      step.id[to] = id, step.times[to] = times, step.below[to] = lanes.place_in(list.ids, length, id);
    }
    fresh += at.total;
  }
  list.length = length;
  lanes.sync();
  return fresh;
}

// Inserts the new ids; the list has room for them. Entries are moved from the back, so that each is read before its
// memory is written.
template <class Lanes>
SPECDEC_HD void insert(const CountedList& list, const StepTokens& step, int fresh, const Lanes& lanes) {
  const int begin = fresh > 0 ? step.below[0] : list.length;
  for (int last = list.length - 1; last >= begin; last -= Lanes::kWidth) {
    const int j = last - lanes.lane();
    const bool moves = j >= begin;
    const int32_t id = moves ? list.ids[j] : -1, count = moves ? list.counts[j] : 0;
    lanes.sync();
    if (moves) list.put(j + lanes.place_in(step.id, fresh, id), id, count);
    lanes.sync();
  }
  for (int k = lanes.lane(); k < fresh; k += Lanes::kWidth) list.put(step.below[k] + k, step.id[k], step.times[k]);
}

// Counts the tokens of request b, and returns its status. If several requests have the same list, only the first one's
// tokens count.
template <class Lanes>
SPECDEC_HD int32_t count_tokens(const CountTokens& a, int64_t b, StepTokens& step, const Lanes& lanes) {
  const int64_t s = a.list(b);
  if (s == -1) return 0;
  if (s < 0 || s >= a.S || lanes.named_before(a, b)) return kInvalidRow;
  CountedList list{a.ids + s * a.ids_stride, a.counts + s * a.counts_stride, lanes.ids_in(a.used(s))};
  if (list.length < 0) return kInvalidRow;
  int fresh = count_known(list, sort_tokens(a, b, step.sorted, lanes), step, lanes);
  const int drop = list.length + fresh - a.H;
  if (drop > 0) {
    const Together<Lanes> all{list, step, fresh, lanes};
    const Kept kept = choose(all, drop);
    fresh = remove_others(all, kept, list, step);
  }
  insert(list, step, fresh, lanes);
  return drop > 0 ? kHistoryFull : 0;
}

}  // namespace specdec
