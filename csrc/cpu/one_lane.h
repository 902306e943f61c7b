// SPDX-License-Identifier: Apache-2.0
// The only lane, on the CPU, of algorithms written for several lanes that share the work. In CUDA, the lanes are the
// threads of a block (cuda/block_lanes.cuh).
#pragma once

namespace specdec {

struct OneLane {
  static constexpr int kWidth = 1;
  struct Sums {
    int before, total;
  };
  int lane() const { return 0; }
  void sync() const {}
  // The sums of x over the lanes before this one, and over all lanes
  Sums scan(int x) const { return {0, x}; }
};

}  // namespace specdec
