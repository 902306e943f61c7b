// SPDX-License-Identifier: Apache-2.0
// What the kernels of verify_tree are given. One block per request walks its tree and reads the rows that it visits,
// nothing else; of a request by a rule, what stands for p is made at every node before.
#pragma once

#include "../../cuda/block_executor.cuh"
#include "../../cuda/launch.h"
#include "verify_tree.h"

namespace specdec {

struct Trees {
  VerifyTree a;
  ChunkTable table;                     // of one row for each request
  Subtraction* subtractions = nullptr;  // [B, most_subtractions()]
  NodeDist* dists = nullptr;            // [B, N], where rules are given
  Frame* frames = nullptr;              // [B, frames()]

  Trees(const VerifyTree& a, Scratch& scratch, const Tensor& like) : a(a) {
    const TableRoom room(scratch, std::max(a.B, makers()), chunk_count(a.widest()),
                         a.target.sampling.filters() || a.draft.sampling.filters());
    const size_t of_subtractions = scratch.ask<Subtraction>(a.B * a.most_subtractions()),
                 of_dists = scratch.ask<NodeDist>(a.rules ? a.B * a.N : 0);
    const size_t of_frames = scratch.ask<Frame>(a.method == Method::kTraversal ? a.B * a.frames() : 0);
    scratch.allocate(like);
    table = room.in(scratch), subtractions = scratch.at<Subtraction>(of_subtractions),
    dists = scratch.at<NodeDist>(of_dists), frames = scratch.at<Frame>(of_frames);
  }

  // Blocks that make the laws of nodes by rule
  int64_t makers() const { return a.rules ? std::min<int64_t>(a.B * a.N, 1024) : 0; }

  template <class Executor, Methods kMethods = Methods::kAll>
  SPECDEC_DEVICE void walk(int64_t b) const {
    Executor executor(table.row(b, chunk_count(a.widest())));
    verify_tree<kMethods>(executor, a, b, {subtractions + b * a.most_subtractions(), dists + b * a.N},
                          frames + b * a.frames());
  }
};

// The walks of the requests that ask for a rule.
void walk_trees_by_rule(const Trees& s, cudaStream_t stream);

}  // namespace specdec
