// SPDX-License-Identifier: Apache-2.0
// A cluster of blocks per pair of rows, which keeps their weights on chip where it has the room, and makes all passes
// of the search there.
#include <torch/csrc/stable/library.h>

#include <algorithm>

#include "../../cuda/pair_search.cuh"
#include "kseq_rho_op.h"

namespace specdec {
namespace {

// The search for rho alone, of a pair whose laws are at hand: nothing is made or drawn as by a ResidualExecutor.
class PairExecutor : public BlockSearch {
 public:
  SPECDEC_DEVICE explicit PairExecutor(const PairTables& tables) : tables_(tables) {}

  SPECDEC_DEVICE PairMass masses(const Dist& p, const Dist& q) {
    return pair_masses(DistWeights{p}, q, tables_.next());
  }
  SPECDEC_DEVICE void clipped_sums(const Dist& p, const Dist& q, const float (&t)[kCandidates],
                                   double (&out)[kCandidates]) {
    const PairPass pass = tables_.next();
    leave_clipped_sums(DistWeights{p}, q, t, pass);
    totals_of(*pass.table, out);
  }

 private:
  PairTables tables_;
};

struct Search {
  KSeqRho a;
  bool keeps = false;
};

__global__ void __launch_bounds__(kThreads, 1) search(const Search s) {
  SPECDEC_DYNAMIC_SHARED(shared);
  const int64_t n = cluster_index();
  PairExecutor executor(PairTables(shared, s.keeps));
  const KSeq found = kseq_rho(executor, s.a.target(n), s.a.draft(n), s.a.k[n]);
  if (cluster_rank() == 0 && threadIdx.x == 0) s.a.write(n, found);
}

// A search whose weights are kept takes less than half as long as one that reads its rows anew each time.
constexpr int kTurnsToKeep = 2;

void run(const KSeqRho& a, const Tensor& like) {
  constexpr const char* kOp = "kseq_rho";
  const OnDeviceOf device(like);
  const ClusterShape shape = cluster_shape<search>(kOp, a.N, pair_room(std::max(a.p.V, a.q.V)), kTurnsToKeep);
  const Search s{a, shape.keeps};
  SPECDEC_LAUNCH_CLUSTERS(kOp, search, a.N, shape, device.stream, s);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, SPECDEC_CUDA_KEY, m) { m.impl("kseq_rho", TORCH_BOX(&kseq_rho_op<run>)); }

}  // namespace specdec
