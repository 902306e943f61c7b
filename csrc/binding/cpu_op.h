// SPDX-License-Identifier: Apache-2.0
// Registers an op from its CPU file, twice: as the op, and as torch.ops.specdec_check.*, which checks the arguments and
// allocates the results, but does not run.
#pragma once

#include <torch/csrc/stable/library.h>

namespace specdec {

// The Run of torch.ops.specdec_check.*. The checks read no values of tensors on a device, so they serve every device.
template <class Arguments>
void nothing(const Arguments&, const torch::stable::Tensor&) {}

}  // namespace specdec

// Registers op<run>, or the member of it that the third argument names, as in ::call
#define SPECDEC_CPU_OP(name, op, ...)                                                           \
  STABLE_TORCH_LIBRARY_IMPL(specdec, CPU, m) { m.impl(name, TORCH_BOX(&op<run> __VA_ARGS__)); } \
  STABLE_TORCH_LIBRARY_IMPL(specdec_check, CompositeExplicitAutograd, m) {                      \
    m.impl(name, TORCH_BOX(&op<nothing> __VA_ARGS__));                                          \
  }
