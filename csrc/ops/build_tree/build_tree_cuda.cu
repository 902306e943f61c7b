// SPDX-License-Identifier: Apache-2.0
// One launch, a block per request.
#include "../../cuda/launch.h"
#include "build_tree.h"

namespace specdec {
namespace {

struct Block {
  template <class F>
  SPECDEC_HD void each(int64_t n, const F& f) const {
#if defined(__CUDA_ARCH__) || defined(SPECDEC_CUDA_ON_CPU)
    for (int64_t i = threadIdx.x; i < n; i += kThreads) f(i);
    __syncthreads();
#endif
  }
};

__global__ void __launch_bounds__(kThreads) build(const BuildTree a) {
  __shared__ Level level;
  build_tree(a, blockIdx.x, level, Block());
}

}  // namespace

void run(const BuildTree& a, const Tensor& like) {
  const OnDeviceOf device(like);
  SPECDEC_LAUNCH("build_tree", build, a.B, device.stream, a);
}

}  // namespace specdec
