// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/stable/library.h>

#include "../../cuda/residual_executor.cuh"
#include "trees.cuh"
#include "verify_tree_op.h"

namespace specdec {
namespace {

// All methods in one kernel: what is large in it, the steps over V, they share.
__global__ void __launch_bounds__(kThreads, 1) walk_trees(const Trees s) {
  if (!s.a.present.has(blockIdx.x)) return put_absent(s.a, blockIdx.x, threadIdx.x, kThreads);
  if (!s.a.by_rule(blockIdx.x)) s.walk<ResidualExecutor>(blockIdx.x);
}

void run(const VerifyTree& a, const Tensor& like) {
  const OnDeviceOf device(like);
  Scratch scratch;
  const Trees s(a, scratch, like);
  if (a.rules) walk_trees_by_rule(s, device.stream);
  SPECDEC_LAUNCH("verify_tree", walk_trees, a.B, device.stream, s);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, SPECDEC_CUDA_KEY, m) {
  m.impl("verify_tree", TORCH_BOX(&VerifyTreeOp<run>::call));
  m.impl("verify_tree.out", TORCH_BOX(&VerifyTreeOp<run>::out));
}

}  // namespace specdec
