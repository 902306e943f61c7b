// SPDX-License-Identifier: Apache-2.0
#include "../../cuda/cuda_op.h"
#include "uniforms_op.h"

namespace specdec {

void run(const Uniforms& a, const Tensor& like);  // uniforms_cuda.cu

SPECDEC_CUDA_OP("uniforms", uniforms_op)

}  // namespace specdec
