// SPDX-License-Identifier: Apache-2.0
// The threads of a block as the lanes that share a rule's work (cpu/one_lane.h has the CPU's)
#pragma once

#include "thread_block.cuh"

namespace specdec {

struct BlockLanes {
  static constexpr int kWidth = kThreads;
  SPECDEC_DEVICE int lane() const { return int(threadIdx.x); }
  SPECDEC_DEVICE void sync() const { __syncthreads(); }
  SPECDEC_DEVICE Prefix<int> scan(int x) const { return block_scan(x); }
};

}  // namespace specdec
