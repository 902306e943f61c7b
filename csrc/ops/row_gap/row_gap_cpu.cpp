// SPDX-License-Identifier: Apache-2.0
#include "../../binding/cpu_op.h"
#include "../../cpu/for_requests.h"
#include "row_gap_op.h"

namespace specdec {
namespace {

void run(const RowGap& a, const Tensor&) {
  for_requests(a.N, std::max(a.p.V, a.q.V),
               [&](CpuExecutor& executor, int64_t n) { a.write(n, row_gap(executor, a.target(n), a.draft(n))); });
}

}  // namespace

SPECDEC_CPU_OP("row_gap", row_gap_op)

}  // namespace specdec
