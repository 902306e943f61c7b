// SPDX-License-Identifier: Apache-2.0
#include "../../binding/cpu_op.h"
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

SPECDEC_CPU_OP("kseq_rho", kseq_rho_op)

}  // namespace specdec
