// SPDX-License-Identifier: Apache-2.0
// Requests that ask for a rule, or for block verification: a block walks the draft of one of them.
#include "requests.cuh"

#include "../../cuda/mixture_executor.cuh"
#include "by_rule.h"

namespace specdec {
namespace {

// The laws that are sampled from are at hand; those that tell how sure a model is have no filters.
class RequestExecutor : public MixtureExecutor {
 public:
  using MixtureExecutor::MixtureExecutor;
  SPECDEC_DEVICE RowStats stats(const Row& row, const Filters& none) {
    return MixtureExecutor::stats<false>(row, none);
  }
};

struct Requests {
  VerifyChain a;
  ChunkTable table;               // of one row for each request
  Position* positions = nullptr;  // [B, positions_of()]
};

__global__ void __launch_bounds__(kThreads, 1) verify_requests(const Requests s) {
  const int64_t b = blockIdx.x;
  if (!s.a.present.has(b) || !s.a.by_rule(b)) return;
  const int64_t V = s.a.target.rows.V > s.a.draft.rows.V ? s.a.target.rows.V : s.a.draft.rows.V;
  RequestExecutor executor(s.table.row(b, chunk_count(V)));
  verify_request(executor, s.a, b, s.positions + b * positions_of(s.a));
}

}  // namespace

void run_requests(const VerifyChain& a, const Tensor& like, cudaStream_t stream) {
  Scratch scratch;
  const int64_t chunks = chunk_count(std::max(a.target.rows.V, a.draft.rows.V));
  const TableRoom table(scratch, a.B, chunks, false);
  const size_t positions = scratch.ask<Position>(a.B * positions_of(a));
  scratch.allocate(like);
  const Requests s{a, table.in(scratch), scratch.at<Position>(positions)};
  SPECDEC_LAUNCH("verify_chain", verify_requests, a.B, stream, s);
}

}  // namespace specdec
