// SPDX-License-Identifier: Apache-2.0
// A cluster of blocks per pair of rows.
#include "../../cuda/by_id.h"
#include "../../cuda/list_entries.cuh"
#include "../../cuda/mixture_executor.cuh"
#include "row_gap.h"

namespace specdec {
namespace {

struct Pairs {
  RowGap a;
  ExecutorTables tables;
};

__global__ void __launch_bounds__(kThreads, 1) measure(const Pairs s) {
  SPECDEC_DYNAMIC_SHARED(shared);
  const int64_t n = cluster_index();
  MixtureExecutor executor(s.tables, shared);
  const Gap gap = row_gap(executor, s.a.target(n), s.a.draft(n));
  if (executor.leads()) s.a.write(n, gap);
}

}  // namespace

template <>
void launch_kernels<kReadsIds>(const RowGap& a, const Tensor& like) {
  const OnDeviceOf device(like);
  const int64_t V = a.widest();
  const ClusterShape shape = cluster_shape<measure>("row_gap", a.N, pair_room(V));
  Scratch scratch;
  const ExecutorRoom room(scratch, a.N, shape, V, false);
  scratch.allocate(like);
  Pairs s{a, room.in(scratch)};
  const EntriesRoom entries = list_pairs("row_gap", s.a, like, device.stream);
  SPECDEC_LAUNCH_CLUSTERS("row_gap", measure, a.N, shape, device.stream, s);
}

#ifndef SPECDEC_READS_IDS
void run(const RowGap& a, const Tensor& like) { launch_either(a, like); }
#endif

}  // namespace specdec
