// SPDX-License-Identifier: Apache-2.0
// The order in which threads, or blocks, take their turns.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace cuda_on_cpu {

class Order {
 public:
  void set(const std::string& name, uint64_t seed, bool threads) {
    if (name != "ascending" && name != "descending" && name != "random" && !(threads && name == "interleaved"))
      throw std::runtime_error(std::string("cuda_on_cpu: the order must be ascending, descending, random") +
                               (threads ? ", interleaved" : "") + ", got " + name);
    name_ = name;
    generator_.seed(seed);
    sorted_ = 0;
  }

  // Returns the permutation of 0..n-1 for the next round.
  const std::vector<int64_t>& round(int64_t n) {
    if (int64_t(order_.size()) != n || !sorted_) {
      order_.resize(n);
      std::iota(order_.begin(), order_.end(), 0);
      if (name_ == "descending") std::reverse(order_.begin(), order_.end());
      if (name_ == "interleaved")
        std::stable_sort(order_.begin(), order_.end(), [](int64_t a, int64_t b) { return a % 32 < b % 32; });
      sorted_ = true;
    }
    if (name_ == "random") std::shuffle(order_.begin(), order_.end(), generator_);
    return order_;
  }

  const std::vector<int64_t>& current() const { return order_; }

 private:
  std::string name_ = "ascending";
  std::minstd_rand generator_{1};
  std::vector<int64_t> order_;
  bool sorted_ = false;
};

}  // namespace cuda_on_cpu
