// SPDX-License-Identifier: Apache-2.0
// Batches in which some request asks for a rule, or for block verification: one launch, one block per request, which walks its
// draft and reads the rows that it visits.
#include "requests.cuh"

#include "../rules/blend_team.cuh"
#include "request.h"

namespace specdec {
namespace {

struct Requests {
  VerifyChain a;
  ChunkTable table;         // of one row for each request
  Place* places = nullptr;  // [B, places_of()]
};

__global__ void __launch_bounds__(kThreads, 1) verify_requests(const Requests s) {
  const int64_t b = blockIdx.x, V = s.a.target.rows.V > s.a.draft.rows.V ? s.a.target.rows.V : s.a.draft.rows.V;
  BlendTeam team(s.table.row(b, chunk_count(V)));
  verify_request(team, s.a, b, s.places + b * places_of(s.a));
}

}  // namespace

void run_requests(const VerifyChain& a, const Tensor& like, cudaStream_t stream) {
  Scratch scratch;
  const int64_t chunks = chunk_count(std::max(a.target.rows.V, a.draft.rows.V));
  const TableRoom table(scratch, a.B, chunks, a.target.sampling.filters() || a.draft.sampling.filters());
  const size_t places = scratch.ask<Place>(a.B * places_of(a));
  scratch.allocate(like);
  const Requests s{a, table.in(scratch), scratch.at<Place>(places)};
  SPECDEC_LAUNCH("verify_chain", verify_requests, a.B, stream, s);
}

}  // namespace specdec
