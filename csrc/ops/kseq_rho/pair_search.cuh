// SPDX-License-Identifier: Apache-2.0
// The Executor of K-SEQ's search where that is all a kernel does: by one block that reads both rows anew for each pass,
// or by a cluster of blocks that reads them once and keeps their weights in shared memory. The same bits either way:
// sums are made of chunks, and chunks are added up by classes that one warp has alone.
#pragma once

#include "../../cuda/cluster.cuh"
#include "../../cuda/pair_sums.cuh"

namespace specdec {

constexpr int kClasses = 128;  // chunk c is of class c % kClasses: of one block of a cluster, and of one of its warps

struct ClassTable {
  double sums[kClasses][kCandidates];
};

// The weights of the chunks that a block keeps, for its lanes without conflicts: eight of each row a group.
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

SPECDEC_DEVICE double warp_total(double x) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(kFullWarp, x, step);
  return x;
}

template <bool kCluster>
class PairSearch {
 public:
  // tables: two, in dynamic shared memory where a cluster works; kept: room for this block's chunks there.
  SPECDEC_DEVICE PairSearch(ClassTable* tables, KeptChunk* kept) : tables_(tables), kept_(kept) {
    if (kCluster) cluster_sync();  // whoever writes to another block's memory finds it there
  }

  SPECDEC_DEVICE PairMass masses(const Dist& p, const Dist& q) {
    if (!p.valid() || !q.valid()) return {NAN, NAN};
    double sums[2];
    const auto read = [&](int c, KeptChunk* keep, int first, float (&x)[kWide], float (&y)[kWide]) {
      pair_weights(DistWeights{p}, q, c, first, x, y);
#pragma unroll
      for (int g = 0; kCluster && g < kPairs; ++g)
        put(keep->x[first + g], x + g * kGroup), put(keep->y[first + g], y + g * kGroup);
    };
    add_up(chunks(p, q), read, sums, [](const float* x, const float* y, double (&sums)[2]) {
#pragma unroll
      for (int e = 0; e < kGroup; ++e) sums[0] += x[e], sums[1] += y[e];
    });
    return {sums[0], sums[1]};
  }

  SPECDEC_DEVICE void clipped_sums(const Dist& p, const Dist& q, const float (&t)[kCandidates],
                                   double (&out)[kCandidates]) {
    const auto read = [&](int c, const KeptChunk* keep, int first, float (&x)[kWide], float (&y)[kWide]) {
      if (!kCluster) return pair_weights(DistWeights{p}, q, c, first, x, y);
#pragma unroll
      for (int g = 0; g < kPairs; ++g) get(keep->x[first + g], x + g * kGroup), get(keep->y[first + g], y + g * kGroup);
    };
    add_up(chunks(p, q), read, out,
           [&](const float* x, const float* y, double (&sums)[kCandidates]) { add_clipped(x, y, t, sums); });
  }

  template <class Test>
  SPECDEC_DEVICE int first_of_32(const Test& test) const {
    return warp_first_of_32(test);
  }

 private:
  static constexpr int kWide = kPairs * kGroup;

  SPECDEC_DEVICE static int chunks(const Dist& p, const Dist& q) {
    return int(chunk_count(p.row.V > q.row.V ? p.row.V : q.row.V));
  }

  template <int M, class Read, class Add>
  SPECDEC_DEVICE void add_up(int chunks, const Read& read, double (&totals)[M], const Add& add) {
    const int rank = kCluster ? cluster_rank() : 0, size = kCluster ? cluster_size() : 1;
    const int warp = int(threadIdx.x) / kLanes, lane = int(threadIdx.x) % kLanes;
    ClassTable& table = tables_[turn_];
    turn_ ^= 1;  // who is late still reads the other
    for (int k = rank + int(threadIdx.x) * size; k < kClasses; k += kThreads * size) {
#pragma unroll
      for (int m = 0; m < M; ++m) table.sums[k][m] = 0;
    }
    __syncthreads();
#pragma unroll 1
    for (int i = warp, c = rank + warp * size; c < chunks; i += kWarps, c += kWarps * size) {
      double sums[M] = {};
#pragma unroll 1
      for (int first = 0; first < kGroups; first += kPairs) {
        float x[kWide], y[kWide];
        read(c, kCluster ? kept_ + i : nullptr, first, x, y);
#pragma unroll
        for (int g = 0; g < kPairs; ++g) add(x + g * kGroup, y + g * kGroup, sums);
      }
#pragma unroll
      for (int m = 0; m < M; ++m) {
        const double total = warp_total(sums[m]);
        if (lane == 0) table.sums[c % kClasses][m] += total;
      }
    }
    __syncthreads();
    if (kCluster) {
      for (int j = threadIdx.x; j < kClasses / size * M; j += kThreads) {  // of this block's classes
        double& sum = table.sums[rank + j / M * size][j % M];
        for (int other = 0; other < size; ++other) {
          if (other != rank) *of_rank(&sum, other) = sum;
        }
      }
      cluster_sync();
    }
#pragma unroll
    for (int m = 0; m < M; ++m) {
      double own = 0;
#pragma unroll
      for (int k = 0; k < kClasses; k += kLanes) own += table.sums[k + lane][m];
      totals[m] = warp_total(own);
    }
  }

  ClassTable* const tables_;
  KeptChunk* const kept_;
  int turn_ = 0;
};

}  // namespace specdec
