// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/stable/library.h>

#include "accept_op.h"

namespace specdec {
namespace {

void run(const Accept& a, const Tensor&) {
  torch::stable::parallel_for(0, a.n, 16384, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) a.test(i);
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, CPU, m) { m.impl("accept", TORCH_BOX(&accept_op<run>)); }
STABLE_TORCH_LIBRARY_IMPL(specdec_check, CompositeExplicitAutograd, m) {
  m.impl("accept", TORCH_BOX(&accept_op<nothing>));
}

}  // namespace specdec
