// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/stable/library.h>

#include "../common/check.h"
#include "../common/cpu_team.h"

namespace specdec {
namespace {

Tensor row_stats_cpu(const Tensor& logits, const OptTensor& temperature, const OptTensor& top_k, const OptTensor& top_p,
                     const OptTensor& min_p) {
  constexpr const char* kOp = "row_stats";
  check_dim(kOp, "logits", logits, 2);
  const int64_t N = logits.size(0);
  const Rows rows{logits.const_data_ptr(), logits.size(1), 0, logits.stride(0), check_rows(kOp, "logits", logits)};
  const Sampling parameters = sampling(kOp, "", temperature, top_k, top_p, min_p, N);
  check_values(kOp, "", parameters, N);

  Tensor stats = empty({N, 4}, ScalarType::Float, logits);
  Law* out = out_pointer<Law>(stats);  // a Law is the four floats, in order
  for_requests(N, rows.V, [&](CpuTeam& team, int64_t n) { out[n] = team.law(rows.at(0, n), parameters[n]); });
  return stats;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, CPU, m) { m.impl("row_stats", TORCH_BOX(&row_stats_cpu)); }

}  // namespace specdec
