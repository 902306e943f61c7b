// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/stable/library.h>

#include "../../cpu/row_executor.h"
#include "by_rule.h"
#include "test_draft.h"
#include "verify_chain_op.h"

namespace specdec {
namespace {

void run(const VerifyChain& a, const Tensor&) {
  const int64_t present = a.present.of(a.B);
  for_requests(present, std::max(a.target.rows.V, a.draft.rows.V), [&](CpuExecutor& executor, int64_t b) {
    if (!a.by_rule(b)) return verify_chain(executor, a, b);
    std::vector<Position> positions(positions_of(a));
    verify_request(executor, a, b, positions.data());
  });
  for (int64_t b = present; b < a.B; ++b) put_absent(a, b);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, CPU, m) {
  m.impl("verify_chain", TORCH_BOX(&VerifyChainOp<run>::call));
  m.impl("verify_chain.out", TORCH_BOX(&VerifyChainOp<run>::out));
}

}  // namespace specdec
