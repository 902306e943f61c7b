// SPDX-License-Identifier: Apache-2.0
#include "../../cuda/cuda_op.h"
#include "row_stats_op.h"

namespace specdec {

void run(const LogitRows& a, const Tensor& like);  // row_stats_cuda.cu

SPECDEC_CUDA_OP("row_stats", PlainRowStats, ::call)
SPECDEC_CUDA_OP("row_stats.views", row_stats_op)

}  // namespace specdec
