// SPDX-License-Identifier: Apache-2.0
// Compiled without fused multiply-adds: each operation is rounded, as it would be if the changed row were computed with
// separate tensor operations.
#include "views.h"

#include <algorithm>

namespace specdec {
namespace {

// A list of ascending ids. Padding, -1 or INT32_MAX, comes last; it counts as larger than every id.
template <class IdAt>
struct Ascending {
  IdAt id_at;
  int64_t n;

  bool below(int64_t j, int64_t v) const { return int64_t(uint32_t(id_at(j))) < v; }
  // The first place in [first, last) whose id is not below v; `last` if there is none
  int64_t search(int64_t v, int64_t first, int64_t last) const {
    while (first < last) {
      const int64_t middle = (first + last) / 2;
      below(middle, v) ? first = middle + 1 : last = middle;
    }
    return first;
  }
  // The first place in [0, n) whose id is not below v; n if there is none. `near` is a guess that is usually right.
  int64_t from(int64_t v, int64_t near) const {
    if (near > n || (near > 0 && !below(near - 1, v))) return search(v, 0, std::min(near, n));
    return near == n || !below(near, v) ? near : search(v, near, n);
  }
  // The places of ids in [begin, end). `near` is where the last call ended, a good guess: chunks are mostly read in
  // order.
  Changes::Places in(int64_t begin, int64_t end, int64_t& near) const {
    Changes::Places places;
    places.first = places.last = from(begin, near);
    while (places.last < n && below(places.last, end)) ++places.last;
    near = places.last;
    return places;
  }
};

// The list of ids that a view's request has used
struct List : UsedList {
  explicit List(const View& view) : UsedList(view.of->penalties, view.of->penalties.history(view.request)) {}
  auto ascending() const {
    return Ascending{[ids = ids](int64_t j) { return ids[j]; }, H};
  }
};

const Bias::Entry* bias_of(const View& view) {
  const int64_t s = view.of->bias_list(view.request, view.position);
  return s < 0 ? nullptr : view.of->bias.sorted.get() + s * view.of->bias.n;
}

auto biased(const View& view, const Bias::Entry* bias) {
  return Ascending{[bias](int64_t j) { return bias[j].id; }, view.of->bias.n};
}

// Calls f(token, position) for the tokens of the window that ends at position `from`, last to first.
template <class F>
void for_window(const View& view, int64_t from, const F& f) {
  const Window& window = view.of->window;
  for (int64_t n = from; n > 0; n = window.before(view.request, n)) f(window.token(view.request, n), n);
}

// How often v occurs in the window that ends at position n
int64_t count_of(const View& view, int64_t v, int64_t n) {
  int64_t count = 0;
  for_window(view, n, [&](int64_t token, int64_t) { count += token == v; });
  return count;
}

// Penalises one entry (T is float) or four (T is a vector). Signs and counts are unpredictable, so there are no
// branches: a factor of 1 or a term of 0 changes nothing.
template <class T>
T penalised(T e, T count, const Amounts& by) {
  const T none{}, one = none + 1.0f, r = none + by.repetition;
  e = e / (e > none ? r : one) * (e > none ? one : r);
  e = e - (count > none ? none + by.frequency : none) * count;
  return e - (count > none ? none + by.presence : none);
}

template <class T>
void raise(T& peak, T x) {
  peak = x > peak ? x : peak;
}

void penalise(const View& view, const Changes& changes, int64_t begin, int n, float* e, Peaks& peaks) {
  using Four = float __attribute__((vector_size(16)));
  const List list(view);
  const Amounts by = view.of->penalties.amounts(view.request);
  const auto penalise_id = [&](int64_t v, int64_t count) {
    raise(peaks.before, e[v]);
    e[v] = penalised(e[v], float(count), by);
    raise(peaks.after, e[v]);
  };
  const auto [first, last] = changes.used;
  int64_t j = first;
  if (!changes.drafted && last - first >= 4) {
    Four before = Four{} - HUGE_VALF, after = before;
    for (; j + 4 <= last; j += 4) {
      const int32_t *const ids = list.ids + j, *const counts = list.counts + j;
      const Four count{float(counts[0]), float(counts[1]), float(counts[2]), float(counts[3])};
      const Four x{e[ids[0]], e[ids[1]], e[ids[2]], e[ids[3]]}, y = penalised(x, count, by);
      raise(before, x), raise(after, y);
      for (int i = 0; i < 4; ++i) e[ids[i]] = y[i];
    }
    for (int i = 0; i < 4; ++i) raise(peaks.before, before[i]), raise(peaks.after, after[i]);
  }
  for (; j < last; ++j) {
    const int64_t v = list.ids[j];
    penalise_id(v, list.counts[j] + (changes.drafted ? count_of(view, v, view.position) : 0));
  }
  if (!changes.drafted) return;
  for_window(view, view.position, [&](int64_t v, int64_t at) {
    if (v < begin || v >= begin + n || count_of(view, v, view.of->window.before(view.request, at)) > 0) return;
    const int64_t j = list.ascending().search(v, first, last);
    if (j == last || list.ids[j] != v) penalise_id(v, count_of(view, v, view.position));
  });
}

}  // namespace

void look_at_mask(const View& view, int64_t begin, int n, Changes& changes) {
  const Mask& mask = view.of->mask;
  const int64_t s = view.of->mask_list(view.request, view.position);
  if (s < 0) return;
  if (n == 1) {
    changes.masked = changes.empty = !mask.allows(mask.of(s), begin);
    return;
  }
  const int64_t first = begin / 32, there = std::clamp<int64_t>(mask.W - first, 0, kChunk / 32);
  const uint32_t* const list = mask.of(s) + first;
  if (there == kChunk / 32) {
    changes.in_mask = list;
  } else {
    std::copy(list, list + there, changes.copied);
    std::fill(changes.copied + there, std::end(changes.copied), 0u);
  }
  const uint32_t* const words = changes.words();
  uint32_t any = 0, all = ~0u;
  if (n == kChunk) {
    for (int w = 0; w < kChunk / 32; ++w) any |= words[w], all &= words[w];
  } else {
    for (int w = 0; w < n / 32; ++w) any |= words[w], all &= words[w];
    if (const uint32_t rest = (1u << n % 32) - 1) any |= words[n / 32] & rest, all &= words[n / 32] | ~rest;
  }
  changes.masked = all != ~0u, changes.empty = any == 0;
}

Changes changes_in(const View& view, int64_t begin, int n) {
  static thread_local int64_t near_bias = 0, near_used = 0;
  Changes changes;
  if (const Bias::Entry* const bias = bias_of(view)) {
    changes.bias = biased(view, bias).in(begin, begin + n, near_bias);
  }
  look_at_mask(view, begin, n, changes);
  if (!view.of->penalises(view.request)) return changes;
  changes.used = List(view).ascending().in(begin, begin + n, near_used);
  for_window(view, view.position, [&](int64_t v, int64_t) { changes.drafted |= v >= begin && v < begin + n; });
  return changes;
}

void ChunkStarts::find(const View& view, int64_t V) {
  const int64_t chunks = chunk_count(V);
  const auto find = [&](const auto& list, std::vector<int32_t>& starts) {
    starts.resize(chunks + 1);
    int32_t* const start = starts.data();
    int64_t j = 0;
    for (int64_t c = 0; c < chunks; ++c) {
      start[c] = int32_t(j);
      for (const int64_t end = std::min((c + 1) * kChunk, V); j < list.n && list.below(j, end);) ++j;
    }
    start[chunks] = int32_t(j);
  };
  masked_ = view.of->mask_list(view.request, view.position) >= 0;
  const Bias::Entry* const bias = bias_of(view);
  if (biased_ = bias; biased_) find(biased(view, bias), bias_);
  if (penalised_ = view.of->penalises(view.request); !penalised_) return;
  find(List(view).ascending(), used_);
  drafted_.assign(chunks, false);
  for_window(view, view.position, [&](int64_t v, int64_t) {
    if (v >= 0 && v < V) drafted_[v / kChunk] = true;
  });
}

Peaks change(const View& view, const Changes& changes, int64_t begin, int n, float* e) {
  Peaks peaks;
  e -= begin;
  const auto for_bias = [&](const auto& f) {
    if (!changes.bias) return;
    const Bias::Entry* const bias = bias_of(view);
    for (int64_t j = changes.bias.first; j < changes.bias.last; ++j) f(e[bias[j].id], bias[j].value);
  };
  for_bias([&](float& e, float value) { raise(peaks.before, e), e += value; });
  if (changes.used || changes.drafted) penalise(view, changes, begin, n, e, peaks);
  for_bias([&](float& e, float) { raise(peaks.after, e); });
  return peaks;
}

}  // namespace specdec
