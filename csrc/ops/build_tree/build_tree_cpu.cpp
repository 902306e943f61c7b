// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "../../binding/cpu_op.h"
#include "../../threads.h"
#include "build_tree_op.h"

namespace specdec {
namespace {

struct Alone {
  template <class F>
  void each(int64_t n, const F& f) const {
    for (int64_t i = 0; i < n; ++i) f(i);
  }
};

void run(const BuildTree& a, const Tensor&) {
  parallel_for(0, a.B, 1 + 4096 / (a.N * a.K + 1), [&](int64_t begin, int64_t end) {
    const auto level = std::make_unique<Level>();
    for (int64_t b = begin; b < end; ++b) build_tree(a, b, *level, Alone());
  });
}

}  // namespace

SPECDEC_CPU_OP("build_tree", build_tree_op)

}  // namespace specdec
