// SPDX-License-Identifier: Apache-2.0
#include "../../cuda/cuda_op.h"
#include "kseq_rho_op.h"

namespace specdec {

void run(const KSeqRho& a, const Tensor& like);  // kseq_rho_cuda.cu

SPECDEC_CUDA_OP("kseq_rho", kseq_rho_op)

}  // namespace specdec
