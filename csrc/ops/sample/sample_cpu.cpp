// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/stable/library.h>

#include "../../cpu/for_requests.h"
#include "sample_op.h"

namespace specdec {
namespace {

void run(const Sample& a, const Tensor&) {
  const int64_t present = a.present.of(a.N);
  for_requests(present, a.logits.V, [&](CpuExecutor& executor, int64_t n) { sample(executor, a, n); });
  for (int64_t n = present; n < a.N; ++n) put_absent(a, n);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, CPU, m) { m.impl("sample", TORCH_BOX(&sample_op<run>)); }
STABLE_TORCH_LIBRARY_IMPL(specdec_check, CompositeExplicitAutograd, m) {
  m.impl("sample", TORCH_BOX(&sample_op<nothing>));
}

}  // namespace specdec
