// SPDX-License-Identifier: Apache-2.0
#include "../../cuda/cuda_op.h"
#include "build_tree_op.h"

namespace specdec {

void run(const BuildTree& a, const Tensor& like);  // build_tree_cuda.cu

SPECDEC_CUDA_OP("build_tree", build_tree_op)

}  // namespace specdec
