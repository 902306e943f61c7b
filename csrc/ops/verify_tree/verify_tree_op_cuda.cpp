// SPDX-License-Identifier: Apache-2.0
#include "../../cuda/cuda_op.h"
#include "verify_tree_op.h"

namespace specdec {

void run(const VerifyTree& a, const Tensor& like);  // verify_tree_cuda.cu

SPECDEC_CUDA_OP("verify_tree", PlainVerifyTree, ::call)
SPECDEC_CUDA_OP("verify_tree.out", PlainVerifyTree, ::out)
SPECDEC_CUDA_OP("verify_tree.views", VerifyTreeOp, ::call)
SPECDEC_CUDA_OP("verify_tree.views_out", VerifyTreeOp, ::out)

}  // namespace specdec
