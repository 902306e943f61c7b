// SPDX-License-Identifier: Apache-2.0
// The race on a row (core/race.h), by a CpuExecutor
#include <cmath>

#include "row_executor.h"

namespace specdec {
namespace {

// The winner among n entries z of the ids from `first` on
Racer winner_of(const float* z, int n, int64_t first, const Dist& d, const Noise& noise) {
  Racer best;
  for (int i = 0; i < n; ++i) {
    const double weight = race_weight(d, z[i]);
    if (weight != -HUGE_VAL) best.meet({weight + noise(first + i), first + i});
  }
  return best;
}

// The winner among the ids whose places start at `begin` to `end` of a row with ids. The weights of an id add up.
Racer winner_of_ids(const Dist& d, int64_t begin, int64_t end, const Few& taken, const Noise& noise) {
  const EntryIds& ids = *d.row.ids;
  Racer best;
  for (int64_t i = begin; i < end;) {
    const int64_t id = ids.places[i].id;
    double weight = -HUGE_VAL;
    const bool starts = i == 0 || ids.places[i - 1].id != id;
    for (; i < ids.n && ids.places[i].id == id; ++i)
      if (starts) weight = sum_of_weights(weight, race_weight(d, ListedReader::entry(d.row, ids.places[i].at, id)));
    if (weight != -HUGE_VAL && !taken.has(id)) best.meet({weight + noise(id), id});
  }
  return best;
}

}  // namespace

int64_t CpuExecutor::race(const Dist& d, const Noise& noise, const Few& taken) {
  const EntryIds* const ids = d.row.ids;
  const int64_t length = ids ? ids->n : d.row.V;
  const auto winner_in = [&](int64_t c) {
    const int n = chunk_size(length, c);
    if (ids) return winner_of_ids(d, c * kChunk, c * kChunk + n, taken, noise);
    float buf[kChunk];
    const float* z = reader_.floats(d.row, c, -HUGE_VALF, buf);
    return winner_of(with_few(d.row, taken, c, n, -HUGE_VALF, z, buf), n, c * kChunk, d, noise);
  };
  if (taken.n == 0) {
    racers_.resize(chunk_count(length));
    for_chunks(int64_t(racers_.size()), winner_in, [&](int64_t c, const Racer& x) { racers_[c] = x; });
  } else {
    const int64_t last = taken[taken.n - 1], place = ids ? ids->between(0, last).size() : last, c = place / kChunk;
    racers_[c] = task_ ? task_->value_of<Racer>(task_->split.owner(c), [&] { return winner_in(c); }) : winner_in(c);
  }
  Racer best;
  for (const Racer& x : racers_) best.meet(x);
  return best.key == best.key ? best.id : -1;
}

}  // namespace specdec
