// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/stable/library.h>

#include "../../cpu/row_executor.h"
#include "residual_op.h"

namespace specdec {
namespace {

// norm(w), where w are the weights (p - q)+ whose total is `total`
void write_normalised(const CpuExecutor& executor, const Dist& p, const Dist& q, double total, float* out) {
  const double inverse = 1 / total;
  for (int64_t c = 0; c < chunk_count(p.row.V); ++c) {
    float w[kChunk];
    executor.weights(p, q, c, w);
    for (int i = 0; i < chunk_size(p.row.V, c); ++i) out[c * kChunk + i] = float(w[i] * inverse);
  }
}

void run(const ResidualRows& a, const Tensor&) {
  const int64_t V = a.p.V;
  for_requests(a.N, V, [&](CpuExecutor& executor, int64_t n) {
    const Dist p = a.target(n), q = a.draft(n);
    float* out = a.probs + n * V;
    const double total = a.mass[n] = executor.sum(p, q);
    if (has_mass(total)) return write_normalised(executor, p, q, total, out);
    const double p_total = executor.sum(p, Dist{});
    if (has_mass(p_total)) return write_normalised(executor, p, Dist{}, p_total, out);
    std::fill(out, out + V, 0.0f);
    out[executor.argmax_finite(p.row)] = 1;
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, CPU, m) { m.impl("residual", TORCH_BOX(&residual_op<run>)); }

}  // namespace specdec
