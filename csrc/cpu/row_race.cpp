// SPDX-License-Identifier: Apache-2.0
// The race on a row (core/race.h), by a CpuExecutor
#include <cmath>

#include "first_racers.h"
#include "row_executor.h"

namespace specdec {
namespace {

// For a row with ids: adds every id whose first place is in [begin, end). The weights of all entries of the id add up.
void add_ids(const Dist& d, int64_t begin, int64_t end, const Noise& noise, FirstRacers& to) {
  const EntryIds& ids = *d.row.ids;
  for (int64_t i = begin; i < end;) {
    const int64_t id = ids.places[i].id;
    double weight = -HUGE_VAL;
    const bool starts = i == 0 || ids.places[i - 1].id != id;
    for (; i < ids.n && ids.places[i].id == id; ++i)
      if (starts) weight = sum_of_weights(weight, race_weight(d, ListedReader::entry(d.row, ids.places[i].at, id)));
    to.add(weight, id, noise);
  }
}

// A racer as one rank sends it to the others. With its entry z, the winner's logprob needs no further exchange.
struct OfRank {
  double key = -HUGE_VAL;
  uint32_t id = 0;
  float z = 0;
};

}  // namespace

void CpuExecutor::add_racers(const Dist& d, int64_t c, const Noise& noise, FirstRacers& to) const {
  if (d.row.ids) return add_ids(d, c * kChunk, c * kChunk + chunk_size(d.row.ids->n, c), noise, to);
  const Changes changes = reader_.changes(d.row, c);
  if (changes.empty) return;
  alignas(64) float buf[kChunk];
  const int n = chunk_size(d.row.V, c);
  const Entries entries = reader_.chunk(d.row, changes, c, buf);
  const bool logits = d.kind == Kind::kLogits;
  if (!logits && rows_.chunk_max(entries, padded(n), nullptr).bad) return to.add(NAN, 0, noise);
  int at[kChunk];
  const Racing racing{noise.seed, noise.position, c * kChunk, to.least()};
  const int count = rows_.racers(entries, n, logits ? &d.stats : nullptr, racing, at);
  for (int i = 0; i < count; ++i)
    to.add(race_weight(d, number_at(entries.data, entries.dtype, at[i])), c * kChunk + at[i], noise);
}

std::vector<Racer> CpuExecutor::first_racers(const Dist& d, const Noise& noise, int64_t k, double least) const {
  const int64_t chunks = chunk_count(d.row.ids ? d.row.ids->n : d.row.V);
  FirstRacers all(k, least);
  const auto add = [&](int64_t begin, int64_t end, FirstRacers& to) {
    for (int64_t c = begin; c < end; ++c) add_racers(d, c, noise, to);
  };
  if (task_) {
    const auto mine = [&](OfRank* to) {
      FirstRacers some(k, least);
      add(task_->split.begin(chunks), task_->split.end(chunks), some);
      if (some.invalid()) to->key = NAN;
      for (const Racer& x : some.invalid() ? std::vector<Racer>() : some.all())
        *to++ = {x.key, uint32_t(x.id), d.row.ids ? 0 : reader_.entry(d.row, x.id)};
    };
    // A rank has at most as many racers as entries.
    task_->for_ranks<OfRank>(std::min(k, task_->split.most(chunks) * kChunk), mine, [&](const OfRank& x) {
      if (x.key != x.key) all.add(NAN, 0, noise);
      if (!(x.key > -HUGE_VAL)) return;
      all.add(Racer{x.key, x.id});
      if (!d.row.ids) task_->know(d.row, x.id, x.z);
    });
  } else if (!wide_) {
    add(0, chunks, all);
  } else {
    std::mutex mutex;
    parallel_for(0, chunks, 8, [&](int64_t begin, int64_t end) {
      FirstRacers some(k, least);
      add(begin, end, some);
      const std::lock_guard<std::mutex> lock(mutex);
      all.add(some);
    });
  }
  // A caller's stats may have a maximum that is not in the row. Then `least` may exceed every key, and the race is run
  // again without it.
  if (all.all().empty() && !all.invalid() && least > -HUGE_VAL) return first_racers(d, noise, k, -HUGE_VAL);
  return all.invalid() ? std::vector<Racer>() : all.in_order();
}

int64_t CpuExecutor::race(const Dist& d, const Noise& noise, const Few& taken, int64_t k) {
  const bool one = k == 1 && d.kind == Kind::kLogits && !d.row.ids;
  // kLeastNoise: the row's maximum has at least this key.
  if (taken.n == 0) racers_ = first_racers(d, noise, k, one ? kLeastNoise : -HUGE_VAL);
  return taken.n < int64_t(racers_.size()) ? racers_[taken.n].id : -1;
}

}  // namespace specdec
