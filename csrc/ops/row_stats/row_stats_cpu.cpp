// SPDX-License-Identifier: Apache-2.0
#include "../../binding/cpu_op.h"
#include "../../cpu/for_requests.h"
#include "row_stats_op.h"

namespace specdec {
namespace {

void run(const LogitRows& a, const Tensor&) {
  const auto walk = [&](CpuExecutor& executor, int64_t n) {
    a.stats[n] = executor.stats(a.logits.at(0, n), a.sampling[n]);
  };
  for_requests(a.present, a.N, a.logits.V, walk, [&](int64_t n) { a.stats[n] = RowStats{}; });
}

}  // namespace

SPECDEC_CPU_OP("row_stats", PlainRowStats, ::call)
SPECDEC_CPU_OP("row_stats.views", row_stats_op)

}  // namespace specdec
