// SPDX-License-Identifier: Apache-2.0
// Compiled without contraction: each operation is rounded on its own, as in a penalised copy of the row.
#include "penalties.h"

#include <algorithm>

namespace specdec {
namespace {

// The list of a view's request
struct List : UsedList {
  explicit List(const View& view) : UsedList(*view.penalties, view.penalties->list(view.request)) {}
  static bool below(int32_t id, int64_t v) { return int64_t(uint32_t(id)) < v; }
  // The first place in [first, last) whose id is not below v
  int64_t search(int64_t v, int64_t first, int64_t last) const {
    return std::lower_bound(ids + first, ids + last, v, below) - ids;
  }
  // The first place in [0, H) whose id is not below v. `near` is a guess, usually right.
  int64_t from(int64_t v, int64_t near) const {
    if (near > H || (near > 0 && !below(ids[near - 1], v))) return search(v, 0, std::min(near, H));
    return near == H || !below(ids[near], v) ? near : search(v, near, H);
  }
};

// Calls f(token, position) for the tokens of a window, last to first.
template <class F>
void for_window(const View& view, int64_t from, const F& f) {
  const Penalties& p = *view.penalties;
  for (int64_t n = from; n > 0; n = p.before(view.request, n)) f(p.token(view.request, n), n);
}

// How often v occurs in the window that ends at position n
int64_t count_of(const View& view, int64_t v, int64_t n) {
  int64_t count = 0;
  for_window(view, n, [&](int64_t token, int64_t) { count += token == v; });
  return count;
}

// Penalises an entry. Its sign and count are unpredictable, so there are no branches: they index the pairs, in which a
// factor of 1 or a term of 0 changes nothing.
struct Change {
  float divisor[2], factor[2], frequency[2], presence[2];

  explicit Change(const Amounts& x)
      : divisor{1, x.repetition}, factor{x.repetition, 1}, frequency{0, x.frequency}, presence{0, x.presence} {}
  float operator()(float e, int64_t count) const {
    const bool positive = e > 0, again = count > 0;
    e = e / divisor[positive] * factor[positive];
    e -= frequency[again] * float(count);
    return e - presence[again];
  }
};

}  // namespace

Used used_ids(const View& view, int64_t begin, int n) {
  static thread_local int64_t near = 0;  // where the last call ended: walks read the chunks in order
  const List list(view);
  Used used;
  used.first = list.from(begin, near);
  used.last = used.first;
  while (used.last < list.H && List::below(list.ids[used.last], begin + n)) ++used.last;
  near = used.last;
  for_window(view, view.position, [&](int64_t v, int64_t) { used.drafted |= v >= begin && v < begin + n; });
  return used;
}

void penalise(const View& view, const Used& used, int64_t begin, int n, float* e) {
  const List list(view);
  const Change changed(view.penalties->amounts(view.request));
  e -= begin;
  if (!used.drafted) {
    for (int64_t j = used.first; j < used.last; ++j) e[list.ids[j]] = changed(e[list.ids[j]], list.counts[j]);
    return;
  }
  for (int64_t j = used.first; j < used.last; ++j) {
    const int64_t v = list.ids[j];
    e[v] = changed(e[v], list.counts[j] + count_of(view, v, view.position));
  }
  for_window(view, view.position, [&](int64_t v, int64_t at) {
    if (v < begin || v >= begin + n || count_of(view, v, view.penalties->before(view.request, at)) > 0) return;
    const int64_t j = list.search(v, used.first, used.last);
    if (j == used.last || list.ids[j] != v) e[v] = changed(e[v], count_of(view, v, view.position));
  });
}

}  // namespace specdec
