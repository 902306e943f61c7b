// SPDX-License-Identifier: Apache-2.0
// A cluster of blocks per pair of rows keeps their weights on chip and makes all passes of the search there. Where
// there are no clusters, or none that holds a pair, a block per pair reads it anew for each pass, from L2.
#include <torch/csrc/stable/library.h>

#include <algorithm>

#include "../../cuda/cluster_launch.h"
#include "kseq_rho_op.h"
#include "pair_search.cuh"

namespace specdec {
namespace {

__global__ void __launch_bounds__(kThreads, 1) search(const KSeqRho a) {
  __shared__ Uninitialised<ClassTable> tables[2];
  const int64_t n = blockIdx.x;
  PairSearch<false> executor(&tables[0].get(), nullptr);
  const KSeq found = kseq_rho(executor, a.target(n), a.draft(n), a.k[n]);
  if (threadIdx.x == 0) a.write(n, found);
}

__global__ void __launch_bounds__(kThreads, 1) search_in_cluster(const KSeqRho a) {
  SPECDEC_DYNAMIC_SHARED(shared);
  const int64_t n = blockIdx.x / unsigned(cluster_size());
  PairSearch<true> executor(reinterpret_cast<ClassTable*>(shared),
                            reinterpret_cast<KeptChunk*>(shared + 2 * sizeof(ClassTable)));
  const KSeq found = kseq_rho(executor, a.target(n), a.draft(n), a.k[n]);
  if (cluster_rank() == 0 && threadIdx.x == 0) a.write(n, found);
}

void run(const KSeqRho& a, const Tensor& like) {
  constexpr const char* kOp = "kseq_rho";
  const OnDeviceOf device(like);
  const int64_t chunks = chunk_count(std::max(a.p.V, a.q.V));
  const ClusterShape wanted = cluster_shape(kOp, a.N, chunks, sizeof(KeptChunk), 2 * sizeof(ClassTable));
  const ClusterShape shape = clusters_for<search_in_cluster>(kOp, wanted);
  if (shape.size)
    SPECDEC_LAUNCH_CLUSTERS(kOp, search_in_cluster, a.N, shape, device.stream, a);
  else
    SPECDEC_LAUNCH(kOp, search, a.N, device.stream, a);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, SPECDEC_CUDA_KEY, m) { m.impl("kseq_rho", TORCH_BOX(&kseq_rho_op<run>)); }

}  // namespace specdec
