// SPDX-License-Identifier: Apache-2.0
// Collects the k best ids of a row. One thread adds ids in ascending order. It collects more than k before it drops the
// worst, which costs much less than sorting the row.
#pragma once

#include <algorithm>
#include <bit>
#include <functional>
#include <vector>

#include "../core/order.h"
#include "simd_kernels.h"

namespace specdec {

class BestIds {
 public:
  explicit BestIds(int64_t k) : k_(k), most_(2 * k + 64) {}

  // `least`: a lower bound of the worth of the k best ids
  void clear(float least = -HUGE_VALF) { orders_.clear(), least_ = least; }
  // An id whose worth is less than this is not among the k best. This also excludes a later id that ties with the k-th
  // best, since the lower id wins a tie.
  float least() const { return least_; }
  bool full() const { return int64_t(orders_.size()) >= k_; }

  void add(float worth, int64_t id) { orders_.push_back(order_of(worth, id)); }
  // If there are too many ids, drops all but the k best. Returns whether it did; if so, least() has grown.
  bool drop_worst() {
    if (int64_t(orders_.size()) <= most_) return false;
    cut();
    least_ = std::nextafter(worth_of_order(orders_.back()), HUGE_VALF);
    return true;
  }
  // The keys (order_of) of the k best, best first
  const std::vector<uint64_t>& in_order() {
    cut();
    std::sort(orders_.begin(), orders_.end(), std::greater<uint64_t>());
    return orders_;
  }

 private:
  // Keeps the k best, with the worst of them at the end.
  void cut() {
    if (int64_t(orders_.size()) <= k_) return;
    std::nth_element(orders_.begin(), orders_.begin() + (k_ - 1), orders_.end(), std::greater<uint64_t>());
    orders_.resize(k_);
  }

  int64_t k_, most_;
  float least_ = -HUGE_VALF;
  std::vector<uint64_t> orders_;
};

// Calls f(i) for the entries of a chunk that are >= `least`. The padding after n entries must be NaN.
template <class F>
void for_reaching(const RowKernels& kernels, const float* z, int n, float least, const F& f) {
  uint32_t bits[kChunk / 32];
  if (!kernels.reach(z, n, least, bits)) return;
  for (int w = 0; 32 * w < n; ++w)
    for (uint32_t word = bits[w]; word; word &= word - 1) f(32 * w + std::countr_zero(word));
}

}  // namespace specdec
