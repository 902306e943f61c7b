// SPDX-License-Identifier: Apache-2.0
// Reads by id cost registers, of which most kernels have none to spare. So the kernels that read a draft's rows are
// compiled twice: by X_cuda.cu, and for drafts with ids by X_by_id_cuda.cu, which includes X_cuda.cu.
#pragma once

#include "../core/entry_ids.h"
#include "launch.h"

namespace specdec {

// X_cuda.cu defines it for kReadsIds.
template <bool kById, class Op>
void launch_kernels(const Op& a, const Tensor& like);

template <class Op>
void run(const Op& a, const Tensor& like) {
  if constexpr (kReadsIds)  // the simulated device: no kernel is compiled twice
    launch_kernels<true>(a, like);
  else
    a.has_ids() ? launch_kernels<true>(a, like) : launch_kernels<false>(a, like);
}

}  // namespace specdec
