// SPDX-License-Identifier: Apache-2.0
// Stands in for torch's header where csrc/cpu is compiled without torch. It runs everything on one thread.
#pragma once

#include <cstdint>

namespace torch::stable {

template <class F>
void parallel_for(int64_t begin, int64_t end, int64_t, const F& f) {
  f(begin, end);
}

}  // namespace torch::stable
