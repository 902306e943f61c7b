// SPDX-License-Identifier: Apache-2.0
// One launch, a block per request. It needs no memory but the results. One warp adds the nodes, so that no step of the
// search needs a barrier of the block.
#include "../../cuda/thread_block.cuh"
#include "../../cuda/warp.cuh"
#include "grow_tree.h"

namespace specdec {
namespace {

// The frontier (grow_tree.h). frontier[i] is the key of node i's next child, and belongs to lane i % 32. `own` is the
// smallest of a lane's keys.
struct WarpFrontier {
  GrownTree& s;
  int lane;
  int size = 0;
  uint64_t own = NodeKey::kNone;

  SPECDEC_DEVICE uint64_t least() const {
    __syncwarp();  // makes nodes that were put before visible to all lanes
    return warp_reduce(own, [](uint64_t a, uint64_t b) { return a < b ? a : b; });
  }
  SPECDEC_DEVICE void add(int node, uint64_t key) {
    size = node + 1;
    if (node % kLanes != lane) return;
    s.frontier[node] = key;
    own = key < own ? key : own;
  }
  SPECDEC_DEVICE void replace(int node, uint64_t key) {
    if (node % kLanes != lane) return;
    s.frontier[node] = key;
    own = NodeKey::kNone;
    for (int i = lane; i < size; i += kLanes) own = s.frontier[i] < own ? s.frontier[i] : own;
  }
  SPECDEC_DEVICE void put_node(int n, uint64_t key) {
    if (lane == 0) s.node[n] = key;
  }
  SPECDEC_DEVICE void put_count(int n) {
    if (lane == 0) s.count = n;
  }
};

struct Block {
  template <class F>
  SPECDEC_DEVICE void each(int n, const F& f) const {
    for (int i = threadIdx.x; i < n; i += kThreads) f(i);
    __syncthreads();
  }
  SPECDEC_DEVICE void grow(const GrowTree& a, GrownTree& s) const {
    if (threadIdx.x < kLanes) {
      WarpFrontier frontier{s, int(threadIdx.x)};
      specdec::grow(a, s, frontier);
    }
    __syncthreads();
  }
};

__global__ void __launch_bounds__(kThreads) grow_trees(const GrowTree a) {
  __shared__ GrownTree tree;
  grow_tree(a, blockIdx.x, tree, Block());
}

}  // namespace

void run(const GrowTree& a, const Tensor& like) {
  const OnDeviceOf device(like);
  SPECDEC_LAUNCH("grow_tree", grow_trees, a.B, device.stream, a);
}

}  // namespace specdec
