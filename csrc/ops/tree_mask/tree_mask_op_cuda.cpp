// SPDX-License-Identifier: Apache-2.0
#include "../../cuda/cuda_op.h"
#include "tree_mask_op.h"

namespace specdec {

void run(const TreeMask& a, const Tensor& like);  // tree_mask_cuda.cu

SPECDEC_CUDA_OP("tree_mask", tree_mask_op)

}  // namespace specdec
