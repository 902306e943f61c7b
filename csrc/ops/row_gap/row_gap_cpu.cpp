// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/stable/library.h>

#include "../../cpu/for_requests.h"
#include "row_gap_op.h"

namespace specdec {
namespace {

void run(const RowGap& a, const Tensor&) {
  for_requests(a.N, std::max(a.p.V, a.q.V),
               [&](CpuExecutor& executor, int64_t n) { a.write(n, row_gap(executor, a.target(n), a.draft(n))); });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, CPU, m) { m.impl("row_gap", TORCH_BOX(&row_gap_op<run>)); }
STABLE_TORCH_LIBRARY_IMPL(specdec_check, CompositeExplicitAutograd, m) {
  m.impl("row_gap", TORCH_BOX(&row_gap_op<nothing>));
}

}  // namespace specdec
