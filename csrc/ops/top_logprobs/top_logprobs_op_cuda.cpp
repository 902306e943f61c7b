// SPDX-License-Identifier: Apache-2.0
#include "../../cuda/cuda_op.h"
#include "top_logprobs_op.h"

namespace specdec {

void run(const TopLogprobs& a, const Tensor& like);  // top_logprobs_cuda.cu

SPECDEC_CUDA_OP("top_logprobs", PlainTopLogprobs, ::call)
SPECDEC_CUDA_OP("top_logprobs.views", top_logprobs_op)

}  // namespace specdec
