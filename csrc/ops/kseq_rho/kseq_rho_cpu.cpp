// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/stable/library.h>

#include "../../cpu/for_requests.h"
#include "kseq_rho_op.h"

namespace specdec {
namespace {

void run(const KSeqRho& a, const Tensor&) {
  for_requests(a.N, std::max(a.p.V, a.q.V), [&](CpuExecutor& executor, int64_t n) {
    a.write(n, kseq_rho(executor, a.target(n), a.draft(n), a.k[n]));
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, CPU, m) { m.impl("kseq_rho", TORCH_BOX(&kseq_rho_op<run>)); }
STABLE_TORCH_LIBRARY_IMPL(specdec_check, CompositeExplicitAutograd, m) {
  m.impl("kseq_rho", TORCH_BOX(&kseq_rho_op<nothing>));
}

}  // namespace specdec
