// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/stable/library.h>

#include "../../cpu/for_requests.h"
#include "row_stats_op.h"

namespace specdec {
namespace {

void run(const LogitRows& a, const Tensor&) {
  const int64_t present = a.present.of(a.N);
  for_requests(present, a.logits.V, [&](CpuExecutor& executor, int64_t n) {
    a.stats[n] = executor.stats(a.logits.at(0, n), a.sampling[n]);
  });
  std::fill(a.stats + present, a.stats + a.N, RowStats{});
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, CPU, m) { m.impl("row_stats", TORCH_BOX(&row_stats_op<run>)); }
STABLE_TORCH_LIBRARY_IMPL(specdec_check, CompositeExplicitAutograd, m) {
  m.impl("row_stats", TORCH_BOX(&row_stats_op<nothing>));
}

}  // namespace specdec
