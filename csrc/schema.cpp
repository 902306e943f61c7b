// SPDX-License-Identifier: Apache-2.0
// Every op, as specdec_kernels/arguments.py has it. docs/ops.md shows them on one page.
#include <torch/csrc/stable/library.h>

#include "schemas.h"  // build_tools/schema.py writes it where the library is built

STABLE_TORCH_LIBRARY(specdec, m) {
  for (const char* schema : kSchemas) m.def(schema);
}

// The same, where nothing runs: arguments are checked, and results made that nobody has written. What a backend calls
// that is not written in C++, so that a check stands once.
STABLE_TORCH_LIBRARY(specdec_check, m) {
  for (const char* schema : kSchemas) m.def(schema);
}
