// SPDX-License-Identifier: Apache-2.0
// Draft rows may have token ids for their entries (core/entry_ids.h). Reads of a row by id need registers, of which
// most kernels have none to spare. So the kernels of verify_chain, verify_tree, row_gap and kseq_rho are compiled
// twice: by X_cuda.cu for drafts without ids, and by X_by_id_cuda.cu, which includes X_cuda.cu, for drafts with ids.
// `sample` has kernels of its own for rows with ids. A build with SPECDEC_CUDA_IDS=0 leaves out the second copies. They
// take half of the build's time and a third of the library.
#pragma once

#include "../core/entry_ids.h"
#include "launch.h"

namespace specdec {

// X_cuda.cu defines launch_kernels<kReadsIds>.
template <bool kById, class Op>
void launch_kernels(const Op& a, const Tensor& like);

template <class Op>
void launch_either(const Op& a, const Tensor& like) {
  if constexpr (kReadsIds)  // on the simulated device no kernel is compiled twice
    launch_kernels<true>(a, like);
  else if (!a.has_ids())
    launch_kernels<false>(a, like);
  else
#ifdef SPECDEC_LEAVES_OUT_IDS
    throw std::runtime_error(std::string(Op::kName) +
                             ": drafts with ids or a vocab_map need CUDA ops built without SPECDEC_CUDA_IDS=0");
#else
    launch_kernels<true>(a, like);
#endif
}

}  // namespace specdec
