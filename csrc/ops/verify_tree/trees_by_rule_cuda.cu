// SPDX-License-Identifier: Apache-2.0
// Requests that ask for a rule, in two launches, the second with a kernel for what takes most registers: all of it
// together would take more than there are.
#include "../../cuda/mixture_executor.cuh"
#include "trees.cuh"

namespace specdec {
namespace {

// What stands for p at every node with children, visited or not, by a cluster of blocks each: so that many do what
// costs most.
__global__ void __launch_bounds__(kThreads, 1) make_node_laws(const Trees s) {
  SPECDEC_DYNAMIC_SHARED(shared);
  MixtureExecutor executor(s.tables, shared);
  NodeDist& x = s.made[blockIdx.x];
  for (int64_t i = cluster_index(); i < s.a.B * s.a.N; i += gridDim.x / unsigned(cluster_size())) {
    const int64_t b = i / s.a.N;
    if (!s.a.present.has(b)) continue;
    const int32_t node = int32_t(i % s.a.N), depth = s.a.by_rule(b) ? s.a.depth_of(b, node) : -1;
    if (depth < 0) continue;
    Walk<MixtureExecutor> walk(executor, s.a, b, {});
    walk.make_dist_of(node, tests_at(node, depth), x);
    complete(executor, s.a.rules.parameters(b).first, x.pi, x.subtraction);
    if (executor.leads()) s.dists[i] = x;
  }
}

class MadeExecutor : public MixtureExecutor {
 public:
  static constexpr bool kMakesRuleDists = false;

  using MixtureExecutor::MixtureExecutor;
};

template <Methods kMethods>
__global__ void __launch_bounds__(kThreads, 1) walk_by_rule(const Trees s) {
  SPECDEC_DYNAMIC_SHARED(shared);
  const int64_t b = cluster_index();
  if (s.a.present.has(b) && s.a.by_rule(b)) s.walk<MadeExecutor, kMethods>(b, shared);
}

template <Methods kMethods>
void walk_with(const VerifyTree& a, const Tensor& like, [[maybe_unused]] cudaStream_t stream) {
  const ClusterShape shape = cluster_shape<walk_by_rule<kMethods>>("verify_tree", a.B, shared_room(a), true);
  Scratch scratch, of_makers;
  const Trees walks(a, scratch, shape, like);
  Trees laws = walks;
  const int64_t makers = std::min<int64_t>(a.B * a.N, 1024);
  const ClusterShape together = cluster_shape<make_node_laws>("verify_tree", makers, {PairTables::kFixed}, false);
  const ExecutorRoom room = executor_room(of_makers, a, makers, together);
  const size_t made = of_makers.ask<NodeDist>(together.blocks(makers));
  of_makers.allocate(like);
  laws.tables = room.in(of_makers), laws.made = of_makers.at<NodeDist>(made);
  SPECDEC_LAUNCH_CLUSTERS("verify_tree", make_node_laws, makers, together, stream, laws);
  SPECDEC_LAUNCH_CLUSTERS("verify_tree", walk_by_rule<kMethods>, a.B, shape, stream, walks);
}

}  // namespace

void walk_trees_by_rule(const VerifyTree& a, const Tensor& like, cudaStream_t stream) {
  const auto walk = a.method == Method::kKseq        ? walk_with<Methods::kKseq>
                    : a.method == Method::kTraversal ? walk_with<Methods::kTraversal>
                                                     : walk_with<Methods::kOthers>;
  walk(a, like, stream);
}

}  // namespace specdec
