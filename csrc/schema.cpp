// SPDX-License-Identifier: Apache-2.0
// Defines every op with its schema from specdec_kernels/arguments.py. docs/ops.md lists all ops.
#include <torch/csrc/stable/library.h>

#include "schemas.h"  // generated in the build folder by build_tools/schema.py

STABLE_TORCH_LIBRARY(specdec, m) {
  for (const char* schema : kSchemas) m.def(schema);
}

// The same schemas for ops that only check arguments and allocate uninitialised results. Backends that are not in C++
// call these ops, so that each check is written once.
STABLE_TORCH_LIBRARY(specdec_check, m) {
  for (const char* schema : kSchemas) m.def(schema);
}
