// SPDX-License-Identifier: Apache-2.0
#include "../../cuda/cuda_op.h"
#include "grow_tree_op.h"

namespace specdec {

void run(const GrowTree& a, const Tensor& like);  // grow_tree_cuda.cu

SPECDEC_CUDA_OP("grow_tree", grow_tree_op)

}  // namespace specdec
