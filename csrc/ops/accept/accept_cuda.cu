// SPDX-License-Identifier: Apache-2.0
#include "../../cuda/launch.h"
#include "accept.h"

namespace specdec {
namespace {

__global__ void __launch_bounds__(kThreads) test(const Accept a) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i < a.n) a.test(i);
}

}  // namespace

void run(const Accept& a, const Tensor& like) {
  const OnDeviceOf device(like);
  SPECDEC_LAUNCH("accept", test, (a.n + kThreads - 1) / kThreads, device.stream, a);
}

}  // namespace specdec
