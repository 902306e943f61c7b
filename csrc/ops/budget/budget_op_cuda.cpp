// SPDX-License-Identifier: Apache-2.0
#include "../../cuda/cuda_op.h"
#include "budget_op.h"

namespace specdec {

void run(const Budget& a, const Tensor& like);  // budget_cuda.cu

SPECDEC_CUDA_OP("budget", budget_op)

}  // namespace specdec
