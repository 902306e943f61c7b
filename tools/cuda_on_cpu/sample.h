// SPDX-License-Identifier: Apache-2.0
// The interface of the sample kernels: how they are called, and the defects that they may have.
#pragma once

#include <cuda_runtime.h>

#include <string>

namespace sample {

constexpr int kThreads = 256;

inline __device__ float warp_sum(float x) {
  for (int o = 16; o; o /= 2) x += __shfl_xor_sync(~0u, x, o);
  return x;
}

enum class Defect {
  none,
  no_barrier,
  divergent_barrier,
  early_exit,
  divergent_shuffle,
  two_ways,
  half_mask,
  deadlock,
  unaligned,
  unaligned_plain,
  no_fence,
  no_atomic,
  through_l1,
  read_only,
  order,
  uninitialised,
  out_of_bounds,
  overflow,
  float_to_int,
  no_first_sync,
  no_cluster_sync,
  one_leaves,
  after_the_last_sync,
  static_shared,
  no_such_rank,
  stop_seen_by_some,
  copy_not_waited_for,
  copy_waited_for_short,
  copy_not_committed,
  copy_without_barrier,
  copy_over_readers,
  copy_unaligned,
  copy_to_memory,
  copy_source_written,
  copy_left,
  no_wait,
  read_before_wait,
  write_before_wait,
  wait_of_one,
  read_only_of_the_first,
  loaded_by_the_first,
  loaded_past_l1_before,
  readers_not_released,
  one_reader_not_released,
  read_after_release,
  set_beside_updates,
  read_beside_updates,
  read_by_ranks,
  update_after_it_was_seen
};

// One call from the harness's Python module
struct Call {
  Defect defect;
  int blocks;
  const void* in;
  int n;
  void* out;
  void* scratch;
};

void run_cluster_sum(const Call& call);
void run_staged_sum(const Call& call);
void run_two_launches(const Call& call);
void run_take_turns(const Call& call);
void run_count_threads(const Call& call);
void run_count_blocks(const Call& call);

}  // namespace sample
