// SPDX-License-Identifier: Apache-2.0
// The walks of requests that ask for a rule or for block verification: a cluster of blocks walks the draft of one
// request.
#include "requests.cuh"

#include "../../cuda/gap_executor.cuh"
#include "by_rule.h"

namespace specdec {
namespace {

// A GapExecutor without the code of filters. The stats of the distributions to sample from are made before, and the
// stats that measure a model's confidence have no filters.
class RequestExecutor : public GapExecutor {
 public:
  using GapExecutor::GapExecutor;
  SPECDEC_DEVICE RowStats stats(const Row& row, const Filters& none) {
    return MixtureExecutor::stats<false>(row, none);
  }
};

struct Requests {
  VerifyChain a;
  ExecutorTables tables;
  float* third = nullptr;         // [2 * B, chunks]
  Position* positions = nullptr;  // [blocks, positions_of()]
};

__global__ void __launch_bounds__(kThreads, 1) verify_requests(const Requests s) {
  SPECDEC_DYNAMIC_SHARED(shared);
  const int64_t b = cluster_index();
  if (!s.a.present.has(b) || !s.a.by_rule(b)) return;
  RequestExecutor executor(s.tables, s.third, shared);
  verify_request(executor, s.a, b, s.positions + blockIdx.x * positions_of(s.a));
}

}  // namespace

template <>
std::function<void(const VerifyChain& a)> prepare_requests<kReadsIds>(const VerifyChain& a, const Tensor& like,
                                                                      [[maybe_unused]] cudaStream_t stream) {
  const int64_t V = std::max(a.target.memory.V, a.draft.most_ids(a.target.memory.V));
  const ClusterShape shape = cluster_shape<verify_requests>("verify_chain", a.B, pair_room(V));
  Scratch scratch;
  const ExecutorRoom room(scratch, a.B, shape, V, false);
  const size_t third = scratch.ask<float>(2 * a.B * chunk_count(V));
  const size_t positions = scratch.ask<Position>(shape.blocks(a.B) * positions_of(a));
  scratch.allocate(like);
  return [=](const VerifyChain& made) {
    const Requests s{made, room.in(scratch), scratch.at<float>(third), scratch.at<Position>(positions)};
    SPECDEC_LAUNCH_CLUSTERS("verify_chain", verify_requests, made.B, shape, stream, s);
  };
}

}  // namespace specdec
