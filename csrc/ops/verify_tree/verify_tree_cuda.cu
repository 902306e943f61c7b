// SPDX-License-Identifier: Apache-2.0

#include "trees.cuh"
#include "../../cuda/by_id.h"
#include "verify_tree.h"

namespace specdec {
namespace {

// One kernel has all methods except the race, since they share its largest part, the steps over V. Requests with a rule
// have kernels of their own (prepare_trees_by_rule).
__global__ void __launch_bounds__(kThreads, 1) walk_trees(const Trees s) {
  SPECDEC_DYNAMIC_SHARED(shared);
  const int64_t b = cluster_index();
  if (!s.a.present.has(b)) {
    if (cluster_rank() == 0) put_absent(s.a, b, threadIdx.x, kThreads);
    return;
  }
  if (!s.a.by_rule(b)) s.walk<ResidualExecutor>(b, shared);
}

}  // namespace

template <>
void launch_kernels<kReadsIds>(const VerifyTree& given, const Tensor& like) {
  const OnDeviceOf device(like);
  VerifyTree a = given;
  if (a.method == Method::kRace) a.draft = unread(a.draft);
  const ViewsRoom views(like, a, a.B * a.N, a.D);
  if (a.method == Method::kRace) {
    const auto race = prepare_race(a, like, device.stream);
    views.make("verify_tree", a, a.B * a.N, device.stream);
    return race();
  }
  const EntriesRoom entries(like, a.draft.ids, a.draft.views, a.draft.memory.V, a.B * a.N, a.target.memory.V,
                            a.draft.kind == Kind::kProbs);
  // All memory of a call is allocated before its first launch.
  const std::function<void()> by_rule = a.rules ? prepare_trees_by_rule<kReadsIds>(a, like, device.stream) : nullptr;
  const ClusterShape shape = cluster_shape<walk_trees>("verify_tree", a.B, shared_room(a));
  Scratch scratch;
  const Trees s(a, scratch, shape, like);
  views.make("verify_tree", a, a.B * a.N, device.stream);
  if constexpr (kReadsIds) entries.make("verify_tree", a, a.B * a.N, views.lists(1), device.stream);
  if (by_rule) by_rule();
  SPECDEC_LAUNCH_CLUSTERS("verify_tree", walk_trees, a.B, shape, device.stream, s);
}

#ifndef SPECDEC_READS_IDS
void run(const VerifyTree& a, const Tensor& like) { launch_either(a, like); }
#endif

}  // namespace specdec
