// SPDX-License-Identifier: Apache-2.0
// Compiled without contraction: each operation is rounded by itself, as a row that is written out has it.
#include "penalties.h"

#include <algorithm>

namespace specdec {
namespace {

// The list of a view's request
struct List {
  const Penalties& p;
  const int32_t *ids, *counts;

  explicit List(const View& view) : p(*view.penalties) {
    const int64_t s = p.list(view.request);
    ids = p.ids + s * p.ids_stride, counts = p.counts + s * p.counts_stride;
  }
  // Place of the first id that is not below v; the pads, -1, lie above all ids.
  int64_t from(int64_t v) const {
    const auto below = [](int32_t id, int64_t v) { return int64_t(uint32_t(id)) < v; };
    return std::lower_bound(ids, ids + p.H, v, below) - ids;
  }
  bool has(int64_t place, int64_t v) const { return place < p.H && ids[place] == v; }
};

// How often v stands in the first n tokens of the window
int64_t drafted(const View& view, int64_t v, int64_t n) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += view.penalties->drafted(view.request, i) == v;
  return count;
}

// f(v, count) of every used id in [begin, end), until it returns true; whether it did
template <class F>
bool any_used(const View& view, int64_t begin, int64_t end, const F& f) {
  const List list(view);
  for (int64_t j = list.from(begin); j < list.p.H && int64_t(uint32_t(list.ids[j])) < end; ++j) {
    const int64_t v = list.ids[j];
    if (f(v, list.counts[j] + drafted(view, v, view.drafted))) return true;
  }
  for (int64_t i = 0; i < view.drafted; ++i) {
    const int64_t v = list.p.drafted(view.request, i);
    if (v < begin || v >= end || drafted(view, v, i) > 0 || list.has(list.from(v), v)) continue;
    if (f(v, drafted(view, v, view.drafted))) return true;
  }
  return false;
}

struct Amounts {
  float repetition, frequency, presence;

  explicit Amounts(const View& view) {
    const Penalties& p = *view.penalties;
    repetition = p.repetition ? p.repetition[view.request] : p.numbers[0];
    frequency = p.frequency ? p.frequency[view.request] : p.numbers[1];
    presence = p.presence ? p.presence[view.request] : p.numbers[2];
  }
  float of_used(float e, int64_t count) const {
    e = e > 0 ? e / repetition : e * repetition;
    if (count <= 0) return e;
    e -= frequency * float(count);
    return e - presence;
  }
};

}  // namespace

bool is_used(const View& view, int64_t begin, int n) {
  return any_used(view, begin, begin + n, [](int64_t, int64_t) { return true; });
}

float penalised(const View& view, int64_t v, float z) {
  penalise(view, v, 1, &z);
  return z;
}

void penalise(const View& view, int64_t begin, int n, float* e) {
  const Amounts amounts(view);
  any_used(view, begin, begin + n, [&](int64_t v, int64_t count) {
    e[v - begin] = amounts.of_used(e[v - begin], count);
    return false;
  });
}

}  // namespace specdec
