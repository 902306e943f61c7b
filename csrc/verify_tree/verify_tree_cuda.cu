// SPDX-License-Identifier: Apache-2.0
// One launch, one block per request: it walks its tree and reads the rows that it visits, nothing else.
#include <torch/csrc/stable/library.h>

#include "../common/chain_team.cuh"
#include "verify_tree_op.h"

namespace specdec {
namespace {

struct Step {
  VerifyTree a;
  ChunkTable table;         // of one row for each request
  Link* links = nullptr;    // [B, most_links()]
  Frame* frames = nullptr;  // [B, D + 1]
};

// All methods in one kernel: what is large in it, the steps over V, they share.
__global__ void __launch_bounds__(kThreads, 1) walk_trees(const Step s) {
  const int64_t b = blockIdx.x;
  ChainTeam team(s.table.row(b, chunk_count(s.a.widest())));
  verify_tree(team, s.a, b, s.links + b * s.a.most_links(), s.frames + b * (s.a.D + 1));
}

void run(const VerifyTree& a, const Tensor& like) {
  const OnDeviceOf device(like);
  Scratch scratch;
  const TableRoom table(scratch, a.B, chunk_count(a.widest()), a.target.sampling.filters() || a.draft.sampling.filters());
  const size_t links = scratch.ask<Link>(a.B * a.most_links());
  const size_t frames = scratch.ask<Frame>(a.method == Method::kTraversal ? a.B * (a.D + 1) : 0);
  scratch.allocate(like);
  const Step s{a, table.in(scratch), scratch.at<Link>(links), scratch.at<Frame>(frames)};
  SPECDEC_LAUNCH("verify_tree", walk_trees, a.B, device.stream, s);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, SPECDEC_CUDA_KEY, m) { m.impl("verify_tree", TORCH_BOX(&verify_tree_op<run>)); }

}  // namespace specdec
