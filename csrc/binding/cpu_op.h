// SPDX-License-Identifier: Apache-2.0
// How an op's CPU file registers it: as the op, and as torch.ops.specdec_check.*, which stops where the op would run.
#pragma once

#include <torch/csrc/stable/library.h>

namespace specdec {

// The Run of torch.ops.specdec_check.*. No value is read of tensors on a device, so every device is served.
template <class Arguments>
void nothing(const Arguments&, const torch::stable::Tensor&) {}

}  // namespace specdec

// op<run>, or what behind it is named
#define SPECDEC_CPU_OP(name, op, ...)                                                           \
  STABLE_TORCH_LIBRARY_IMPL(specdec, CPU, m) { m.impl(name, TORCH_BOX(&op<run> __VA_ARGS__)); } \
  STABLE_TORCH_LIBRARY_IMPL(specdec_check, CompositeExplicitAutograd, m) {                      \
    m.impl(name, TORCH_BOX(&op<nothing> __VA_ARGS__));                                          \
  }
