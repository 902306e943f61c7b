// SPDX-License-Identifier: Apache-2.0
// The lanes of rules that a block's threads share in CUDA (cuda/block_lanes.cuh): one, on the CPU
#pragma once

namespace specdec {

struct OneLane {
  static constexpr int kWidth = 1;
  struct Sums {
    int before, total;
  };
  int lane() const { return 0; }
  void sync() const {}
  Sums scan(int x) const { return {0, x}; }
};

}  // namespace specdec
