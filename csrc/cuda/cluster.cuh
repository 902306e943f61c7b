// SPDX-License-Identifier: Apache-2.0
// Clusters of blocks (sm_90 and newer): their blocks run at the same time, and each can access the dynamic shared
// memory of the others. In a launch without clusters, and on older GPUs, every block is a cluster by itself.
#pragma once

#include "thread_block.cuh"

namespace specdec {

SPECDEC_DEVICE int cluster_rank() {
#if defined(SPECDEC_CUDA_ON_CPU)
  return cuda_on_cpu::cluster_rank();
#elif __CUDA_ARCH__ >= 900
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return 0;
#endif
}

SPECDEC_DEVICE int cluster_size() {
#if defined(SPECDEC_CUDA_ON_CPU)
  return cuda_on_cpu::cluster_size();
#elif __CUDA_ARCH__ >= 900
  int size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
#else
  return 1;
#endif
}

// The index of this cluster in the launch
SPECDEC_DEVICE int64_t cluster_index() { return blockIdx.x / unsigned(cluster_size()); }

// A barrier for all threads of the cluster. All that they wrote before it is visible to all of them after it.
#if defined(SPECDEC_CUDA_ON_CPU)
inline void cluster_sync(cuda_on_cpu::Site site = cuda_on_cpu::Site::current()) {
  if (cluster_size() == 1) return __syncthreads(site);
  cuda_on_cpu::meet_cluster("cluster_sync", site);
}
#else
SPECDEC_DEVICE void cluster_sync() {
  if (cluster_size() == 1) return __syncthreads();
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
#endif

// The address in the dynamic shared memory of the cluster's block `rank` that corresponds to `shared` in this block's
template <class T>
SPECDEC_DEVICE T* of_rank(T* shared, int rank) {
#if defined(SPECDEC_CUDA_ON_CPU)
  return static_cast<T*>(cuda_on_cpu::of_rank(shared, rank));
#elif __CUDA_ARCH__ >= 900
  T* there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(shared), "r"(rank));
  return there;
#else
  return shared;
#endif
}

}  // namespace specdec
