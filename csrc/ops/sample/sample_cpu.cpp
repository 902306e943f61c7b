// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/stable/library.h>

#include "../../cpu/row_executor.h"
#include "sample_op.h"

namespace specdec {
namespace {

void run(const Sample& a, const Tensor&) {
  for_requests(a.N, a.logits.V, [&](CpuExecutor& executor, int64_t n) { sample(executor, a, n); });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, CPU, m) { m.impl("sample", TORCH_BOX(&sample_op<run>)); }

}  // namespace specdec
