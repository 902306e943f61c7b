// SPDX-License-Identifier: Apache-2.0
#include "../../binding/cpu_op.h"
#include "../../cpu/for_requests.h"
#include "residual_op.h"

namespace specdec {
namespace {

void run(const ResidualRows& a, const Tensor&) {
  const int64_t V = a.p.V, present = a.present.of(a.N);
  for_requests(present, V, [&](CpuExecutor& executor, int64_t n) {
    const Dist p = a.target(n);
    const Outcome found = outcome(executor, p, a.draft(n), a.mass[n]);
    const Dist q = found.minus ? a.draft(n) : Dist{};
    float* out = a.probs + n * V;
    if (found.hot >= 0) {
      std::fill(out, out + V, 0.0f);
      out[found.hot] = 1;
      return;
    }
    for (int64_t c = 0; c < chunk_count(V); ++c) {
      float w[kChunk];
      executor.weights(p, q, c, w);
      for (int i = 0; i < chunk_size(V, c); ++i) out[c * kChunk + i] = float(w[i] * found.inverse);
    }
  });
  std::fill(a.probs + present * V, a.probs + a.N * V, 0.0f);
  std::fill(a.mass + present, a.mass + a.N, 0.0);
}

}  // namespace

SPECDEC_CPU_OP("residual", residual_op)

}  // namespace specdec
