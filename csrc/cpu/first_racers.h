// SPDX-License-Identifier: Apache-2.0
// Collects the first k of a race (core/race.h): the ids with the k largest keys. One thread adds them.
#pragma once

#include <algorithm>
#include <vector>

#include "../core/race.h"

namespace specdec {

// A heap whose front is the worst of the first k so far
class FirstRacers {
 public:
  // `least`: if k is 1, a lower bound of the winner's key; otherwise -inf
  FirstRacers(int64_t k, double least) : k_(k), least_(least) {}

  bool invalid() const { return invalid_; }
  double least() const { return least_; }  // smaller keys are not among the first k
  const std::vector<Racer>& all() const { return heap_; }
  std::vector<Racer> in_order() {
    std::sort_heap(heap_.begin(), heap_.end(), ahead);
    return std::move(heap_);
  }

  // `weight` is a result of race_weight(). A NaN makes the row invalid.
  void add(double weight, int64_t id, const Noise& noise) {
    if (weight != weight) invalid_ = true;
    if (weight > -HUGE_VAL && weight + kMostNoise >= least_) add(Racer{weight + noise(id), id});
  }
  void add(const Racer& x) {
    if (int64_t(heap_.size()) == k_) {
      if (!ahead(x, heap_.front())) return;
      std::pop_heap(heap_.begin(), heap_.end(), ahead);
      heap_.back() = x;
    } else {
      heap_.push_back(x);
    }
    std::push_heap(heap_.begin(), heap_.end(), ahead);
    if (int64_t(heap_.size()) == k_) least_ = std::max(least_, heap_.front().key);
  }
  void add(const FirstRacers& other) {
    invalid_ |= other.invalid_;
    for (const Racer& x : other.heap_) add(x);
  }

 private:
  static bool ahead(const Racer& x, const Racer& y) { return x.key > y.key || (x.key == y.key && x.id < y.id); }

  int64_t k_;
  double least_;
  bool invalid_ = false;
  std::vector<Racer> heap_;
};

}  // namespace specdec
