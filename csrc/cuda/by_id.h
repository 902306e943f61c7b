// SPDX-License-Identifier: Apache-2.0
// Reads by id cost registers, of which most kernels have none to spare. So the kernels of verify_chain, verify_tree,
// row_gap and kseq_rho are compiled twice: for drafts without ids by X_cuda.cu, and for those with ids by
// X_by_id_cuda.cu, which includes X_cuda.cu. `sample` has a kernel of its own for rows with ids.
#pragma once

#include "../core/entry_ids.h"
#include "launch.h"

namespace specdec {

// X_cuda.cu defines launch_kernels<kReadsIds>.
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
