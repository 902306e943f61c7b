// SPDX-License-Identifier: Apache-2.0
// Requests that ask for a rule, in two launches of one kernel: the first makes the distributions pi of all nodes, the
// second walks the trees. They share a kernel so that the largest part of the code, the passes over V, is compiled
// once.
#include "../../cuda/mixture_executor.cuh"
#include "trees.cuh"

namespace specdec {
namespace {

// Zeroes a NodeDist before use: it is copied as a whole, and some of its members stay unset, depending on its kind.
SPECDEC_DEVICE void clear(NodeDist& x) {
  static_assert(sizeof(NodeDist) % sizeof(int64_t) == 0);
  for (int i = threadIdx.x; i < int(sizeof(NodeDist) / sizeof(int64_t)); i += kThreads)
    reinterpret_cast<int64_t*>(&x)[i] = 0;
  __syncthreads();
}

// Makes the distribution that replaces p at every node, visited or not. Each cluster takes one node at a time, so that
// many clusters share this work, the most expensive part.
SPECDEC_DEVICE void make_node_laws(const Trees& s, char* shared) {
  MixtureExecutor executor(s.tables, shared);
  clear(s.made[blockIdx.x]);
  for (int64_t i = cluster_index(); i < s.a.B * s.a.N; i += gridDim.x / unsigned(cluster_size())) {
    const int64_t b = i / s.a.N;
    if (!s.a.present.has(b)) continue;
    const int32_t node = int32_t(i % s.a.N), depth = s.a.by_rule(b) ? s.a.depth_of(b, node) : -1;
    if (depth < 0) continue;
    NodeDist& x = s.made[opaque(int(blockIdx.x))];  // opaque: else the loop keeps the addresses of its members
    Walk<MixtureExecutor> walk(executor, s.a, b, {});
    walk.make_dist_of(node, tests_at(node, depth), x);
    complete(executor, s.a.rules.parameters(b).first, x.pi, x.subtraction);
    if (executor.leads()) s.dists[i] = x;
  }
}

// A MixtureExecutor for walks of trees whose nodes all have their pi made, without the code that makes it
class MadeExecutor : public MixtureExecutor {
 public:
  static constexpr bool kMakesRuleDists = false;

  using MixtureExecutor::MixtureExecutor;
};

// Each method, or group of methods, has a walk of its own: one walk for all of them would be put on the stack.
__global__ void __launch_bounds__(kThreads, 1) trees_by_rule(const Trees s) {
  SPECDEC_DYNAMIC_SHARED(shared);
  if (s.made) return make_node_laws(s, shared);
  const int64_t b = cluster_index();
  if (!s.a.present.has(b) || !s.a.by_rule(b)) return;
  if (s.a.method == Method::kKseq)
    s.walk<MadeExecutor, Methods::kKseq>(b, shared);
  else if (s.a.method == Method::kTraversal)
    s.walk<MadeExecutor, Methods::kTraversal>(b, shared);
  else
    s.walk<MadeExecutor, Methods::kOthers>(b, shared);
}

}  // namespace

template <>
std::function<void()> prepare_trees_by_rule<kReadsIds>(const VerifyTree& a, const Tensor& like,
                                                       [[maybe_unused]] cudaStream_t stream) {
  const ClusterShape shape = cluster_shape<trees_by_rule>("verify_tree", a.B, shared_room(a));
  Scratch scratch, of_makers;
  const Trees walks(a, scratch, shape, like);
  Trees laws = walks;
  const int64_t makers = std::min<int64_t>(a.B * a.N, 1024);
  const ClusterShape together = cluster_shape<trees_by_rule>("verify_tree", makers, {PairTables::kFixed});
  const ExecutorRoom room = executor_room(of_makers, a, makers, together);
  const size_t made = of_makers.ask<NodeDist>(together.blocks(makers));
  of_makers.allocate(like);
  laws.tables = room.in(of_makers), laws.made = of_makers.at<NodeDist>(made);
  return [=, held = std::pair(scratch, of_makers)] {
    SPECDEC_LAUNCH_CLUSTERS("verify_tree", trees_by_rule, makers, together, stream, laws);
    SPECDEC_LAUNCH_CLUSTERS("verify_tree", trees_by_rule, walks.a.B, shape, stream, walks);
  };
}

}  // namespace specdec
