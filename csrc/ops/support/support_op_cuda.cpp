// SPDX-License-Identifier: Apache-2.0
#include "../../cuda/cuda_op.h"
#include "support_op.h"

namespace specdec {

void run(const Support& a, const Tensor& like);  // support_cuda.cu

SPECDEC_CUDA_OP("support", PlainSupport, ::call)
SPECDEC_CUDA_OP("support.views", support_op)

}  // namespace specdec
