// SPDX-License-Identifier: Apache-2.0
// Registers an op twice, in its CPU file: as the op itself, and as torch.ops.specdec_check.<op>, which checks the
// arguments and allocates the results, but computes nothing.
#pragma once

#include <torch/csrc/stable/library.h>

namespace specdec {

// The Run of torch.ops.specdec_check.<op>. The checks read no values of tensors on a GPU, so one registration serves
// all devices.
template <class Arguments>
void nothing(const Arguments&, const torch::stable::Tensor&) {}

}  // namespace specdec

// Registers op<run>. If there is a third argument, such as ::call, registers that member of op<run>.
#define SPECDEC_CPU_OP(name, op, ...)                                                           \
  STABLE_TORCH_LIBRARY_IMPL(specdec, CPU, m) { m.impl(name, TORCH_BOX(&op<run> __VA_ARGS__)); } \
  STABLE_TORCH_LIBRARY_IMPL(specdec_check, CompositeExplicitAutograd, m) {                      \
    m.impl(name, TORCH_BOX(&op<nothing> __VA_ARGS__));                                          \
  }
