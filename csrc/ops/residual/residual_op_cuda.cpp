// SPDX-License-Identifier: Apache-2.0
#include "../../cuda/cuda_op.h"
#include "residual_op.h"

namespace specdec {

void run(const ResidualRows& a, const Tensor& like);  // residual_cuda.cu

SPECDEC_CUDA_OP("residual", residual_op)

}  // namespace specdec
