// SPDX-License-Identifier: Apache-2.0
// A block per pair of rows makes all passes of the search, and finds the pair in the L2 cache from the second one on.
#include <torch/csrc/stable/library.h>

#include "../../cuda/pair_sums.cuh"
#include "kseq_rho_op.h"

namespace specdec {
namespace {

__global__ void __launch_bounds__(kThreads, 1) search(const KSeqRho a) {
  const int64_t n = blockIdx.x;
  PairExecutor executor;
  const KSeq found = kseq_rho(executor, a.target(n), a.draft(n), a.k[n]);
  if (threadIdx.x == 0) a.write(n, found);
}

void run(const KSeqRho& a, const Tensor& like) {
  const OnDeviceOf device(like);
  SPECDEC_LAUNCH("kseq_rho", search, a.N, device.stream, a);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, SPECDEC_CUDA_KEY, m) { m.impl("kseq_rho", TORCH_BOX(&kseq_rho_op<run>)); }

}  // namespace specdec
