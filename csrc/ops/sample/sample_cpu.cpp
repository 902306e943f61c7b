// SPDX-License-Identifier: Apache-2.0
#include "../../binding/cpu_op.h"
#include "../../cpu/for_requests.h"
#include "race.h"
#include "sample_op.h"

namespace specdec {
namespace {

void run(const Sample& a, const Tensor&) {
  const auto walk = [&](CpuExecutor& executor, int64_t n) {
    a.race ? sample_by_race(executor, a, n) : sample(executor, a, n);
  };
  for_requests(a.present, a.N, a.logits.V, walk, [&](int64_t n) { put_absent(a, n); });
}

}  // namespace

SPECDEC_CPU_OP("sample", PlainSample, ::call)
SPECDEC_CPU_OP("sample.views", sample_op)

}  // namespace specdec
