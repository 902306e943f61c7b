// SPDX-License-Identifier: Apache-2.0
#include "../../cuda/launch.h"
#include "uniforms.h"

namespace specdec {
namespace {

__global__ void __launch_bounds__(kThreads) fill(const Uniforms a) {
  const int64_t at = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (at < a.B * a.n) a.fill(at / a.n, at % a.n);
}

}  // namespace

void run(const Uniforms& a, const Tensor& like) {
  const OnDeviceOf device(like);
  SPECDEC_LAUNCH("uniforms", fill, (a.B * a.n + kThreads - 1) / kThreads, device.stream, a);
}

}  // namespace specdec
