// SPDX-License-Identifier: Apache-2.0
#include "../../cuda/cuda_op.h"
#include "sample_op.h"

namespace specdec {

void run(const Sample& a, const Tensor& like);  // sample_cuda.cu

SPECDEC_CUDA_OP("sample", PlainSample, ::call)
SPECDEC_CUDA_OP("sample.views", sample_op)

}  // namespace specdec
