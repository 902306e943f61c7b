// SPDX-License-Identifier: Apache-2.0
#include "../../cuda/cuda_op.h"
#include "row_gap_op.h"

namespace specdec {

void run(const RowGap& a, const Tensor& like);  // row_gap_cuda.cu

SPECDEC_CUDA_OP("row_gap", row_gap_op)

}  // namespace specdec
