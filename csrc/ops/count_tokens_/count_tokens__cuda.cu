// SPDX-License-Identifier: Apache-2.0
// One launch, a block per request. It needs no memory but the lists.
#include "../../cuda/block_lanes.cuh"
#include "../../cuda/launch.h"
#include "../../cuda/used_list.cuh"
#include "count_tokens_.h"

namespace specdec {
namespace {

struct Lanes : BlockLanes {
  SPECDEC_DEVICE int min(int x) const { return block_min(x); }
  SPECDEC_DEVICE int ids_in(const UsedList& list) const { return specdec::ids_in(list); }
  SPECDEC_DEVICE int place_in(const int32_t* ids, int n, int32_t v) const { return specdec::place_in(ids, n, v); }
  // Whether a request before b has b's list
  SPECDEC_DEVICE bool named_before(const CountTokens& a, int64_t b) const {
    const int64_t s = a.list(b);
    bool named = false;
    for (int64_t other = threadIdx.x; a.row && other < b; other += kThreads) named |= a.row[other] == s;
    return __syncthreads_or(named);
  }
};

__global__ void __launch_bounds__(kThreads) count(const CountTokens a) {
  __shared__ StepTokens step;
  const int32_t status = count_tokens(a, blockIdx.x, step, Lanes());
  if (threadIdx.x == 0) a.status[blockIdx.x] = status;
}

}  // namespace

void run(const CountTokens& a, const Tensor& like) {
  const OnDeviceOf device(like);
  SPECDEC_LAUNCH("count_tokens_", count, a.B, device.stream, a);
}

}  // namespace specdec
