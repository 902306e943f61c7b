// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/stable/library.h>

#include "../../cpu/row_executor.h"
#include "verify_tree_op.h"

namespace specdec {
namespace {

void run(const VerifyTree& a, const Tensor&) {
  for_requests(a.B, a.widest(), [&](CpuTeam& team, int64_t b) {
    std::vector<Link> links(a.most_links());
    std::vector<NodeLaw> laws(a.rules ? a.N : 0);
    std::vector<Frame> frames(a.method == Method::kTraversal ? a.frames() : 0);
    verify_tree(team, a, b, {links.data(), laws.data()}, frames.data());
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, CPU, m) { m.impl("verify_tree", TORCH_BOX(&verify_tree_op<run>)); }

}  // namespace specdec
