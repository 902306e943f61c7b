// SPDX-License-Identifier: Apache-2.0
#include "../../cuda/cuda_op.h"
#include "count_tokens__op.h"

namespace specdec {

void run(const CountTokens& a, const Tensor& like);  // count_tokens__cuda.cu

SPECDEC_CUDA_OP("count_tokens_", count_tokens_op)

}  // namespace specdec
