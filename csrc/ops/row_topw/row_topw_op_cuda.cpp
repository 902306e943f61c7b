// SPDX-License-Identifier: Apache-2.0
#include "../../cuda/cuda_op.h"
#include "row_topw_op.h"

namespace specdec {

void run(const RowTopW& a, const Tensor& like);  // row_topw_cuda.cu

SPECDEC_CUDA_OP("row_topw", PlainRowTopw, ::call)
SPECDEC_CUDA_OP("row_topw.views", row_topw_op)

}  // namespace specdec
