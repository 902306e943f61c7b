// SPDX-License-Identifier: Apache-2.0
#include "../../binding/cpu_op.h"
#include "../../threads.h"
#include "accept_op.h"

namespace specdec {
namespace {

void run(const Accept& a, const Tensor&) {
  parallel_for(0, a.n, 16384, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) a.test(i);
  });
}

}  // namespace

SPECDEC_CPU_OP("accept", accept_op)

}  // namespace specdec
