// SPDX-License-Identifier: Apache-2.0
// Verification by the race (race.h): a cluster of blocks walks the draft of one request.
#include "race.h"

#include "../../cuda/race.cuh"
#include "requests.cuh"

namespace specdec {
namespace {

struct Races {
  VerifyChain a;
  RaceTables tables;
};

// Blocks that must fit an SM. On sm_100 and newer the walk needs more than 128 registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kResident = 1;
#else
constexpr int kResident = 2;
#endif

__global__ void __launch_bounds__(kThreads, kResident) race_chains(const Races s) {
  const int64_t b = cluster_index();
  if (!s.a.present.has(b)) {
    if (cluster_rank() == 0) put_absent(s.a, b, threadIdx.x, kThreads);
    return;
  }
  RaceExecutor executor(s.tables);
  verify_by_race(executor, s.a, b);
}

}  // namespace

std::function<void()> prepare_race(const VerifyChain& a, const Tensor& like, [[maybe_unused]] cudaStream_t stream) {
  const ClusterShape shape = cluster_shape<race_chains>("verify_chain", a.B, {});
  Scratch scratch;
  const RaceRoom room(scratch, a.B, a.target.memory.V, a.target.sampling.filters());
  scratch.allocate(like);
  return [=] {
    const Races s{a, room.in(scratch)};
    SPECDEC_LAUNCH_CLUSTERS("verify_chain", race_chains, a.B, shape, stream, s);
  };
}

}  // namespace specdec
