// SPDX-License-Identifier: Apache-2.0
#include "../../cuda/cuda_op.h"
#include "verify_chain_op.h"

namespace specdec {

void run(const VerifyChain& a, const Tensor& like);  // verify_chain_cuda.cu

SPECDEC_CUDA_OP("verify_chain", PlainVerifyChain, ::call)
SPECDEC_CUDA_OP("verify_chain.out", PlainVerifyChain, ::out)
SPECDEC_CUDA_OP("verify_chain.views", VerifyChainOp, ::call)
SPECDEC_CUDA_OP("verify_chain.views_out", VerifyChainOp, ::out)

}  // namespace specdec
