// SPDX-License-Identifier: Apache-2.0
// Requests that ask for a rule, in two launches, the second with a kernel for what takes most registers: all of it
// together would take more than there are.
#include "../../cuda/mixture_executor.cuh"
#include "trees.cuh"

namespace specdec {
namespace {

// What stands for p at every node with children, visited or not: so that many blocks do what costs most.
__global__ void __launch_bounds__(kThreads, 1) make_node_laws(const Trees s, int64_t makers) {
  for (int64_t i = blockIdx.x; i < s.a.B * s.a.N; i += makers) {
    const int64_t b = i / s.a.N;
    if (!s.a.present.has(b)) continue;
    const int32_t node = int32_t(i % s.a.N), depth = s.a.by_rule(b) ? s.a.depth_of(b, node) : -1;
    if (depth < 0) continue;
    MixtureExecutor executor(s.table.row(blockIdx.x, chunk_count(s.a.widest())));
    Walk<MixtureExecutor> walk(executor, s.a, b, {nullptr, s.dists + b * s.a.N});
    walk.make_dist_of(node, tests_at(node, depth));
    NodeDist& x = s.dists[i];
    complete(executor, s.a.rules.parameters(b).first, x.pi, x.subtraction);
  }
}

class MadeExecutor : public MixtureExecutor {
 public:
  static constexpr bool kMakesRuleDists = false;

  using MixtureExecutor::MixtureExecutor;
};

template <Methods kMethods>
__global__ void __launch_bounds__(kThreads, 1) walk_by_rule(const Trees s) {
  if (s.a.present.has(blockIdx.x) && s.a.by_rule(blockIdx.x)) s.walk<MadeExecutor, kMethods>(blockIdx.x);
}

}  // namespace

void walk_trees_by_rule(const Trees& s, cudaStream_t stream) {
  SPECDEC_LAUNCH("verify_tree", make_node_laws, s.makers(), stream, s, s.makers());
  const Method method = s.a.method;
  const auto walk = method == Method::kKseq        ? walk_by_rule<Methods::kKseq>
                    : method == Method::kTraversal ? walk_by_rule<Methods::kTraversal>
                                                   : walk_by_rule<Methods::kOthers>;
  SPECDEC_LAUNCH("verify_tree", walk, s.a.B, stream, s);
}

}  // namespace specdec
