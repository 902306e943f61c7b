// SPDX-License-Identifier: Apache-2.0
// Distributes requests over threads. The rows may be spread over ranks (shards.h); then each request has a ShardTask.
#pragma once

#include "../core/arguments.h"
#include "row_executor.h"

namespace specdec {

// Calls walk(begin, end) on several threads, each time for some of the N rows.
template <class Walk>
void for_rows(int64_t N, int64_t V, const Walk& walk) {
  const int64_t grain = V >= 16 * kChunk ? 1 : 1 + 16 * kChunk / (V + 64);
  parallel_for(0, N, grain, walk);
}

// for_requests() for rows that are spread over ranks
template <class Walk>
void for_tasks(ShardedCall& call, int64_t B, int64_t V, const Walk& walk) {
  std::deque<ShardTask>* tasks = call.tasks(B);
  if (!tasks) return;
  for_rows(B, V, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      ShardTask& task = (*tasks)[b];
      CpuExecutor executor(V, false, &task);
      walk_sharded(task, [&] { walk(executor, b); });
    }
  });
}

// Calls walk(executor, b) for every request b. Each request runs on one thread, or the requests run one after another,
// each on all threads.
template <class Walk>
void for_requests(int64_t B, int64_t V, const Walk& walk) {
  if (ShardedCall* call = ShardedCall::current()) return for_tasks(*call, B, V, walk);
  // Sharing a row costs a fork and join per pass, so it pays only if most threads would be idle.
  const int64_t threads = torch::stable::get_num_threads();
  const bool wide = V >= 32 * kChunk && threads > 1 && (B == 1 || 4 * B <= threads);
  if (wide || B == 1) {
    CpuExecutor executor(V, wide);
    for (int64_t b = 0; b < B; ++b) executor.forget(), walk(executor, b);
    return;
  }
  for_rows(B, V, [&](int64_t begin, int64_t end) {
    CpuExecutor executor(V, false);
    for (int64_t b = begin; b < end; ++b) executor.forget(), walk(executor, b);
  });
}

// For padded buffers: calls walk(executor, b) for the requests that are present, and absent(b) for the others.
template <class Walk, class Absent>
void for_requests(const Present& present, int64_t B, int64_t V, const Walk& walk, const Absent& absent) {
  const int64_t there = present.of(B);
  for_requests(there, V, walk);
  for (int64_t b = there; b < B; ++b) absent(b);
}

}  // namespace specdec
