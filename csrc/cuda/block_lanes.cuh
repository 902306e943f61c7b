// SPDX-License-Identifier: Apache-2.0
// The threads of a block as the lanes that share an op's work (budget.h, count_tokens_.h). The CPU's one lane is in
// cpu/one_lane.h.
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
