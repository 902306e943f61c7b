// SPDX-License-Identifier: Apache-2.0
// Registers an op for CUDA tensors, in its file X_op_cuda.cpp, which declares the run() that X_cuda.cu defines. So g++
// compiles the checks of arguments, not nvcc.
#pragma once

#define SPECDEC_IN_CUDA  // arguments have the layout that the kernels see

#include <torch/csrc/stable/library.h>

#include "launch.h"

// Registers op<run>. If there is a third argument, such as ::call, registers that member of op<run>.
#define SPECDEC_CUDA_OP(name, op, ...) \
  STABLE_TORCH_LIBRARY_IMPL(specdec, SPECDEC_CUDA_KEY, m) { m.impl(name, TORCH_BOX(&op<run> __VA_ARGS__)); }
