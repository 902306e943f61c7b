// SPDX-License-Identifier: Apache-2.0
// Sums over a pair of rows by a cluster of blocks. If there is room, each block keeps the weights of its chunks in
// shared memory, so that rows are read once for all passes. Otherwise every pass reads them again. The bits do not
// depend on the size of the cluster: chunk c is of class c % kClasses, and one warp of one block adds up all chunks of
// a class, in ascending order.
#pragma once

#include "cluster.cuh"
#include "cluster_launch.h"
#include "pair_sums.cuh"

namespace specdec {

constexpr int kClasses = 128;  // a multiple of the warps of a cluster

struct ClassTable {
  double sums[kClasses][kCandidates];
};

// The weights of one chunk that a block keeps. For each group and lane there are eight of each row, as two float4.
// Those of adjacent lanes are adjacent, so there are no bank conflicts.
struct KeptChunk {
  float4 x[kGroups][2][kLanes], y[kGroups][2][kLanes];
};

SPECDEC_DEVICE void put(float4 (&to)[2][kLanes], const float* w) {
  const int lane = int(threadIdx.x) % kLanes;
  to[0][lane] = make_float4(w[0], w[1], w[2], w[3]), to[1][lane] = make_float4(w[4], w[5], w[6], w[7]);
}
SPECDEC_DEVICE void get(const float4 (&from)[2][kLanes], float* w) {
  const int lane = int(threadIdx.x) % kLanes;
  const float4 a = from[0][lane], b = from[1][lane];
  w[0] = a.x, w[1] = a.y, w[2] = a.z, w[3] = a.w, w[4] = b.x, w[5] = b.y, w[6] = b.z, w[7] = b.w;
}

// The memory of one pass: a table for its sums, and the weights that the block keeps (null: there is no room)
struct PairPass {
  ClassTable* table;
  KeptChunk* kept;
};

// The class tables and kept chunks of a block, in its dynamic shared memory
class PairTables {
 public:
  static constexpr size_t kFixed = 2 * sizeof(ClassTable), kEach = sizeof(KeptChunk);  // bytes; kEach: per kept chunk

  SPECDEC_DEVICE PairTables(char* shared, bool keeps)
      : tables_(reinterpret_cast<ClassTable*>(shared)),
        kept_(keeps ? reinterpret_cast<KeptChunk*>(shared + kFixed) : nullptr) {
    if (cluster_size() > 1) cluster_sync();  // other blocks may write here only once this one runs
  }

  // Passes alternate between two tables: late threads may still read that of the pass before.
  SPECDEC_DEVICE PairPass next() {
    turn_ ^= 1;
    return {tables_ + turn_, kept_};
  }

 private:
  ClassTable* tables_;
  KeptChunk* kept_;
  int turn_ = 0;
};

// The dynamic shared memory for pairs of rows of V entries
inline SharedRoom pair_room(int64_t V) { return {PairTables::kFixed, chunk_count(V), PairTables::kEach}; }

// Fills the table of a pass, `table`, in all blocks of the cluster. read(i, c, first, x, y) loads kWide weights of both
// rows, from group `first` of chunk c on; c is the block's i-th chunk. add(x, y, sums) adds the terms of one group to M
// sums.
template <int M, int kWide, class Read, class Add>
SPECDEC_DEVICE void add_up(ClassTable& table, int chunks, const Read& read, const Add& add) {
  const int rank = cluster_rank(), size = cluster_size();
  const int warp = int(threadIdx.x) / kLanes, lane = int(threadIdx.x) % kLanes;
  for (int k = rank + int(threadIdx.x) * size; k < kClasses; k += kThreads * size) {
#pragma unroll
    for (int m = 0; m < M; ++m) table.sums[k][m] = 0;
  }
  __syncthreads();
#pragma unroll 1
  for (int i = warp, c = rank + warp * size; c < chunks; i += kWarps, c += kWarps * size) {
    double sums[M] = {};
#pragma unroll 1
    for (int first = 0; first < kGroups; first += kWide / kGroup) {
      float x[kWide], y[kWide];
      read(i, c, first, x, y);
#pragma unroll
      for (int g = 0; g < kWide; g += kGroup) add(x + g, y + g, sums);
    }
#pragma unroll
    for (int m = 0; m < M; ++m) {
      const double total = warp_sum(sums[m]);
      if (lane == 0) table.sums[c % kClasses][m] += total;
    }
  }
  __syncthreads();
  if (size == 1) return;
  // Copies the sums of this block's classes to the other blocks.
  const int other = int(threadIdx.x) % kLargestCluster, m = int(threadIdx.x) / kLargestCluster % M;
  constexpr int kAtOnce = kThreads / (kLargestCluster * M);  // classes that are copied at a time
  for (int k = rank + int(threadIdx.x) / (kLargestCluster * M) * size; k < kClasses; k += kAtOnce * size) {
    if (other < size && other != rank) *of_rank(&table.sums[k][m], other) = table.sums[k][m];
  }
  cluster_sync();
}

// The M sums of a table over all classes, in every lane of a warp
template <int M>
SPECDEC_DEVICE void totals_of(const ClassTable& table, double (&totals)[M]) {
  const int lane = int(threadIdx.x) % kLanes;
#pragma unroll
  for (int m = 0; m < M; ++m) {
    double own = 0;
#pragma unroll
    for (int k = 0; k < kClasses; k += kLanes) own += table.sums[k + lane][m];
    totals[m] = warp_sum(own);
  }
}

template <class Weights>
SPECDEC_DEVICE int pair_chunks(const Weights& p, const Dist& q) {
  return int(chunk_count(p.V() > q.row.V ? p.V() : q.row.V));
}

// The total weights of both rows, NaN if one is invalid. Stores the weights in pass.kept, unless that is null.
template <class Weights>
SPECDEC_DEVICE PairMass pair_masses(const Weights& p, const Dist& q, const PairPass pass) {
  if (!p.valid() || !q.valid()) return {NAN, NAN};
  using Entries = typename Weights::Entries;
  constexpr int N = Entries::kEntries;
  const auto read = [&](int i, int c, int first, float (&x)[N], float (&y)[N]) {
    pair_weights(p, q, Entries{c, first}, x, y);
    if (!pass.kept) return;
#pragma unroll
    for (int g = 0; g < N / kGroup; ++g)
      put(pass.kept[i].x[first + g], x + g * kGroup), put(pass.kept[i].y[first + g], y + g * kGroup);
  };
  add_up<2, N>(*pass.table, pair_chunks(p, q), read, [](const float* x, const float* y, double (&sums)[2]) {
#pragma unroll
    for (int e = 0; e < kGroup; ++e) sums[0] += x[e], sums[1] += y[e];
  });
  double sums[2];
  totals_of(*pass.table, sums);
  return {sums[0], sums[1]};
}

// Writes sum (p - t q)+ of each class for each t to pass.table; totals_of() adds them up. The last pair_masses() must
// have been for the same p and q.
template <class Weights>
SPECDEC_DEVICE void leave_clipped_sums(const Weights& p, const Dist& q, const float (&t)[kCandidates],
                                       const PairPass pass) {
  using Entries = typename Weights::Entries;
  constexpr int N = Entries::kEntries;
  const auto add = [&](const float* x, const float* y, double (&sums)[kCandidates]) { add_clipped(x, y, t, sums); };
  const auto get_kept = [&](int i, int, int first, float (&x)[N], float (&y)[N]) {
#pragma unroll
    for (int g = 0; g < N / kGroup; ++g)
      get(pass.kept[i].x[first + g], x + g * kGroup), get(pass.kept[i].y[first + g], y + g * kGroup);
  };
  const auto read = [&](int, int c, int first, float (&x)[N], float (&y)[N]) {
    pair_weights(p, q, Entries{c, first}, x, y);
  };
  if (pass.kept)
    add_up<kCandidates, N>(*pass.table, pair_chunks(p, q), get_kept, add);
  else
    add_up<kCandidates, N>(*pass.table, pair_chunks(p, q), read, add);
}

}  // namespace specdec
