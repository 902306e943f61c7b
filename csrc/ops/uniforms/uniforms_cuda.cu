// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/stable/library.h>

#include "../../cuda/launch.h"
#include "uniforms_op.h"

namespace specdec {
namespace {

__global__ void __launch_bounds__(kThreads) fill(const Uniforms a) {
  const int64_t at = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (at < a.B * a.n) a.fill(at / a.n, at % a.n);
}

void run(const Uniforms& a, const Tensor& like) {
  const OnDeviceOf device(like);
  SPECDEC_LAUNCH("uniforms", fill, (a.B * a.n + kThreads - 1) / kThreads, device.stream, a);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, SPECDEC_CUDA_KEY, m) { m.impl("uniforms", TORCH_BOX(&uniforms_op<run>)); }

}  // namespace specdec
