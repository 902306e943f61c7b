// SPDX-License-Identifier: Apache-2.0
// One launch of one block, since all slots of the batch compete for one budget. It needs no memory but the result.
#include "../../cuda/block_lanes.cuh"
#include "budget.h"

namespace specdec {
namespace {

struct Lanes : BlockLanes {
  SPECDEC_DEVICE void add(int* count) const { atomicAdd(count, 1); }
};

__global__ void __launch_bounds__(kThreads) spread_budget(const Budget a) {
  __shared__ SlotSearch search;
  spread(a, search, Lanes());
}

}  // namespace

void run(const Budget& a, const Tensor& like) {
  const OnDeviceOf device(like);
  SPECDEC_LAUNCH("budget", spread_budget, 1, device.stream, a);
}

}  // namespace specdec
