// SPDX-License-Identifier: Apache-2.0
// The arguments of verify_tree's kernels. A cluster of blocks per request walks its tree and reads only the rows that
// it visits. For a request with a rule, the distributions pi that replace p are made at all nodes in a launch before.
#pragma once

#include <functional>

#include "../../cuda/list_entries.cuh"
#include "../../cuda/residual_executor.cuh"
#include "verify_tree.h"

namespace specdec {

// The dynamic shared memory of a walk. Only K-SEQ's walk makes several passes over a pair of rows, so only it gets room
// to keep the weights of a pair. (The launch that makes the distributions pi gets none.)
inline SharedRoom shared_room(const VerifyTree& a) {
  return a.method == Method::kKseq ? pair_room(a.widest()) : SharedRoom{PairTables::kFixed};
}

inline ExecutorRoom executor_room(Scratch& scratch, const VerifyTree& a, int64_t clusters, const ClusterShape& shape) {
  const bool filters = a.target.sampling.filters() || a.draft.sampling.filters();
  return {scratch, clusters, shape, a.widest(), filters};
}

struct Trees {
  VerifyTree a;
  ExecutorTables tables;
  Subtraction* subtractions = nullptr;  // [blocks, most_subtractions()]
  NodeDist* dists = nullptr;            // [B, N], if rules are given
  NodeDist* made = nullptr;             // [blocks], only in the launch that makes `dists`
  Frame* frames = nullptr;              // [blocks, frames()]

  Trees(const VerifyTree& a, Scratch& scratch, const ClusterShape& shape, const Tensor& like) : a(a) {
    const int64_t blocks = shape.blocks(a.B);
    const ExecutorRoom room = executor_room(scratch, a, a.B, shape);
    const size_t of_subtractions = scratch.ask<Subtraction>(blocks * a.most_subtractions()),
                 of_dists = scratch.ask<NodeDist>(a.rules ? a.B * a.N : 0),
                 of_frames = scratch.ask<Frame>(a.method == Method::kTraversal ? blocks * a.frames() : 0);
    scratch.allocate(like);
    tables = room.in(scratch), subtractions = scratch.at<Subtraction>(of_subtractions),
    dists = scratch.at<NodeDist>(of_dists), frames = scratch.at<Frame>(of_frames);
  }

  template <class Executor, Methods kMethods = Methods::kAll>
  SPECDEC_DEVICE void walk(int64_t b, char* shared) const {
    Executor executor(tables, shared);
    verify_tree<kMethods>(executor, a, b, {subtractions + blockIdx.x * a.most_subtractions(), dists + b * a.N},
                          frames + blockIdx.x * a.frames());
  }
};

// Calls f for the rows of both sides at a node of a request (cuda/views.cuh).
template <class F>
SPECDEC_DEVICE void each_view(const VerifyTree& a, int64_t i, const F& f) {
  const int64_t b = i / a.N, node = i % a.N;
  if (!a.present.has(b)) return;
#pragma unroll 1
  for (int side = 0; side < 2; ++side) {
    const Rows& rows = side ? a.draft : a.target;
    const int64_t position = side ? a.parents.at(b, node) : node;
    const IntTable& numbers = side ? a.draft_row : a.target_row;
    const int64_t row = numbers ? numbers.at(b, node) : position;
    if ((rows.views || rows.ids) && row >= 0 && row < rows.per_request && position >= 0 && position <= node)
      f(side, rows, i, rows.as_stored(-1, b, row), rows.ids_at(-1, b, row), b, position);
  }
}

// Allocates the memory for the walks of the requests with a rule, and returns the function that launches them.
template <bool kById>
std::function<void()> prepare_trees_by_rule(const VerifyTree& a, const Tensor& like, cudaStream_t stream);

// Allocates the memory for walks by the race (race.h), and returns the function that launches them. A race reads no
// draft row.
std::function<void()> prepare_race(const VerifyTree& a, const Tensor& like, cudaStream_t stream);

}  // namespace specdec
