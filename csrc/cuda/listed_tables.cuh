// SPDX-License-Identifier: Apache-2.0
// Turns penalties' tables of used ids into lists, in a launch before the one that makes the views (views.cuh). So a
// table is read for each request, not for each of its rows. A block makes the list of one request on each side.
#pragma once

#include "../core/penalties.h"
#include "thread_block.cuh"

namespace specdec {

// Room for the used ids of a request. The rows of a request with more of them are invalid.
constexpr int64_t kMostUsed = 16384;

// The tables of one side, and the lists that they become
struct TablesToLists {
  Penalties tables;                           // none if the penalties come as lists
  int64_t V = 0, room = 0;                    // room: entries of a list
  int32_t *ids = nullptr, *counts = nullptr;  // [B, room]
  int32_t* row = nullptr;                     // [B]: b, or -1 if the history of request b is invalid

  Penalties lists(int64_t B) const {
    Penalties p = tables;
    p.ids = ids, p.counts = counts, p.prompt_bits = nullptr, p.row = {row, 1, false};
    p.S = B, p.H = p.ids_stride = p.counts_stride = room;
    return p;
  }
};

// Splits a table among the warps of a block, and calls f(used, v, count) for every 32 ids of a warp's part, in order. v
// is the id of this lane, `count` its count, and bit l of `used` says whether the id of lane l is used. Called by all
// lanes.
template <class F>
SPECDEC_DEVICE void for_table(const UsedTable& table, const F& f) {
  const int words = (table.H + 31) / 32, part = (words + kWarps - 1) / kWarps;
  const int warp = int(threadIdx.x) / kLanes, lane = int(threadIdx.x) % kLanes;
  const int last = (warp + 1) * part < words ? (warp + 1) * part : words;
#pragma unroll 1
  for (int w = warp * part; w < last; ++w) {
    const int v = w * 32 + lane;
    f(__ballot_sync(kFullWarp, table.uses(v)), v, table.count(v));
  }
}

// Makes the list of request b on one side. Called by all threads of a block.
SPECDEC_DEVICE void list_table(const TablesToLists& side, int64_t b) {
  __shared__ int used[kWarps];
  if (!side.tables) return;
  const auto leave = [&](bool is_valid) {
    if (threadIdx.x == 0) side.row[b] = is_valid ? int32_t(b) : -1;
  };
  if (!side.tables.fine(b)) return leave(false);
  if (!side.tables.amounts(b).any()) return leave(true);  // nothing reads this list
  int32_t* const ids = side.ids + b * side.room;
  const UsedTable table(side.tables, side.tables.history(b), side.V);
  const int warp = int(threadIdx.x) / kLanes, lane = int(threadIdx.x) % kLanes;
  int n = 0;
  bool fine = true;
  for_table(table, [&](unsigned mask, int, int32_t count) { n += __popc(mask), fine &= count >= 0; });
  if (lane == 0) used[warp] = n;
  fine = __syncthreads_and(fine);
  int at = 0, all = 0;
  for (int w = 0; w < kWarps; ++w) at += w < warp ? used[w] : 0, all += used[w];
  if (!fine || all > side.room) return leave(false);
  for_table(table, [&](unsigned mask, int v, int32_t count) {
    const int place = at + __popc(mask & ((1u << lane) - 1));
    if (mask >> lane & 1) ids[place] = v, side.counts[b * side.room + place] = count;
    at += __popc(mask);
  });
  for (int64_t j = all + int(threadIdx.x); j < side.room; j += kThreads) ids[j] = -1;
  leave(true);
}

struct TablesLaunch {
  TablesToLists sides[2];
};
template <class Op>
__global__ void __launch_bounds__(kThreads) list_tables(const TablesLaunch s) {
  list_table(s.sides[0], blockIdx.x);
  __syncthreads();
  list_table(s.sides[1], blockIdx.x);
}

}  // namespace specdec
