// SPDX-License-Identifier: Apache-2.0
#include "../../cuda/cuda_op.h"
#include "accept_op.h"

namespace specdec {

void run(const Accept& a, const Tensor& like);  // accept_cuda.cu

SPECDEC_CUDA_OP("accept", accept_op)

}  // namespace specdec
