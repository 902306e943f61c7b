// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/stable/library.h>

#include "../../cpu/row_executor.h"
#include "verify_tree_op.h"

namespace specdec {
namespace {

void run(const VerifyTree& a, const Tensor&) {
  const int64_t present = a.present.of(a.B);
  for_requests(present, a.widest(), [&](CpuExecutor& executor, int64_t b) {
    std::vector<Subtraction> subtractions(a.most_subtractions());
    std::vector<NodeDist> dists(a.rules ? a.N : 0);
    std::vector<Frame> frames(a.method == Method::kTraversal ? a.frames() : 0);
    verify_tree(executor, a, b, {subtractions.data(), dists.data()}, frames.data());
  });
  for (int64_t b = present; b < a.B; ++b) put_absent(a, b);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, CPU, m) {
  m.impl("verify_tree", TORCH_BOX(&VerifyTreeOp<run>::call));
  m.impl("verify_tree.out", TORCH_BOX(&VerifyTreeOp<run>::out));
}

}  // namespace specdec
