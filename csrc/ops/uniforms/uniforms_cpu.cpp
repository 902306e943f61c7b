// SPDX-License-Identifier: Apache-2.0
#include "../../binding/cpu_op.h"
#include "../../threads.h"
#include "uniforms_op.h"

namespace specdec {
namespace {

void run(const Uniforms& a, const Tensor&) {
  parallel_for(0, a.B, 1 + 4096 / (a.n + 1), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      for (int64_t i = 0; i < a.n; ++i) a.fill(b, i);
  });
}

}  // namespace

SPECDEC_CPU_OP("uniforms", uniforms_op)

}  // namespace specdec
