// SPDX-License-Identifier: Apache-2.0
// A cluster of blocks per pair of rows makes all passes of the search for rho. It keeps the pair's weights in shared
// memory if there is room.

#include <algorithm>

#include "../../cuda/by_id.h"
#include "../../cuda/list_entries.cuh"
#include "../../cuda/pair_search.cuh"
#include "kseq_rho.h"

namespace specdec {
namespace {

// An executor for the search for rho alone, on a pair with known stats. Unlike a ResidualExecutor it makes no stats and
// draws nothing.
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

// A search that keeps the weights takes less than half as long as one that reads its rows again for each pass. So
// keeping them pays even if the clusters then run in two turns.
constexpr int kTurnsToKeep = 2;
}  // namespace

template <>
void launch_kernels<kReadsIds>(const KSeqRho& a, const Tensor& like) {
  constexpr const char* kOp = "kseq_rho";
  const OnDeviceOf device(like);
  const ClusterShape shape = cluster_shape<search>(kOp, a.N, pair_room(a.widest()), kTurnsToKeep);
  Search s{a, shape.keeps};
  const EntriesRoom entries = list_pairs(kOp, s.a, like, device.stream);
  SPECDEC_LAUNCH_CLUSTERS(kOp, search, a.N, shape, device.stream, s);
}

#ifndef SPECDEC_READS_IDS
void run(const KSeqRho& a, const Tensor& like) { launch_either(a, like); }
#endif

}  // namespace specdec
