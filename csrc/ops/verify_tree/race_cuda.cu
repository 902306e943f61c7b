// SPDX-License-Identifier: Apache-2.0
// Verification by the race (race.h): a cluster of blocks walks the tree of one request.
#include "race.h"

#include "../../cuda/race.cuh"
#include "trees.cuh"

namespace specdec {
namespace {

struct Races {
  VerifyTree a;
  RaceTables tables;
};

__global__ void __launch_bounds__(kThreads, 1) race_trees(const Races s) {
  const int64_t b = cluster_index();
  if (!s.a.present.has(b)) {
    if (cluster_rank() == 0) put_absent(s.a, b, threadIdx.x, kThreads);
    return;
  }
  RaceExecutor executor(s.tables);
  verify_by_race(executor, s.a, b);
}

}  // namespace

std::function<void()> prepare_race(const VerifyTree& a, const Tensor& like, [[maybe_unused]] cudaStream_t stream) {
  const ClusterShape shape = cluster_shape<race_trees>("verify_tree", a.B, {});
  Scratch scratch;
  const RaceRoom room(scratch, a.B, a.target.memory.V, a.target.sampling.filters());
  scratch.allocate(like);
  return [=] {
    const Races s{a, room.in(scratch)};
    SPECDEC_LAUNCH_CLUSTERS("verify_tree", race_trees, a.B, shape, stream, s);
  };
}

}  // namespace specdec
