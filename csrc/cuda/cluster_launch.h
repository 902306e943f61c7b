// SPDX-License-Identifier: Apache-2.0
// Which launches go to clusters of blocks: how many blocks a cluster has, and whether the device takes it.
#pragma once

#include <cstdlib>
#include <cstring>

#include "launch.h"

namespace specdec {

struct ClusterShape {
  int size = 1;        // blocks
  size_t shared = 0;   // bytes of dynamic shared memory, each
  bool keeps = false;  // there is room for what it wants to keep

  int64_t blocks(int64_t clusters) const { return clusters * size; }
};

// Dynamic shared memory that a kernel asks for: `fixed` bytes in every block, and, where there is room for all of them,
// parts of `each` bytes, dealt out in turn.
struct SharedRoom {
  size_t fixed = 0;
  int64_t parts = 0;
  size_t each = 0;

  size_t in_cluster_of(int size) const { return fixed + size_t((parts + size - 1) / size) * each; }
};

constexpr int kLargestCluster = 8;  // that every GPU with clusters takes

// SPECDEC_CUDA_PATH=cluster or streaming forces one of the ways; by default clusters run where they fit.
enum class CudaPath { kAny, kCluster, kStreaming };
inline CudaPath cuda_path(const char* op) {
  const char* asked = std::getenv("SPECDEC_CUDA_PATH");
  if (!asked || !*asked) return CudaPath::kAny;
  if (!std::strcmp(asked, "cluster")) return CudaPath::kCluster;
  if (!std::strcmp(asked, "streaming")) return CudaPath::kStreaming;
  throw std::runtime_error(std::string(op) + ": SPECDEC_CUDA_PATH must be cluster or streaming, got " + asked);
}

inline int device_attribute(const char* op, cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  check_cuda(op, cudaGetDevice(&device));
  check_cuda(op, cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

inline bool has_clusters(const char* op) { return device_attribute(op, cudaDevAttrComputeCapabilityMajor) >= 9; }

// What a device gives a kernel: the most dynamic shared memory that a block may have, and the sizes of clusters that it
// takes with all of that, bit by bit: few where it is partitioned, or shared, too finely.
struct Allowance {
  size_t shared = 0;
  int sizes = 1;
};

#if !defined(SPECDEC_CUDA_ON_CPU)
inline cudaLaunchConfig_t cluster_config(int64_t clusters, const ClusterShape& shape, cudaStream_t stream,
                                         cudaLaunchAttribute& attribute) {
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = unsigned(shape.size), attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(clusters * shape.size));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = shape.shared;
  config.stream = stream;
  config.attrs = &attribute, config.numAttrs = shape.size > 1;  // a device without clusters knows no such attribute
  return config;
}

template <auto kKernel>
Allowance allowance_of(const char* op) {
  static OncePerDevice known;
  const uint64_t answer = known(op, [&] {  // shared << 8 | sizes
    const void* const kernel = reinterpret_cast<const void*>(kKernel);
    cudaFuncAttributes its{};
    check_cuda(op, cudaFuncGetAttributes(&its, kernel));
    int shared = device_attribute(op, cudaDevAttrMaxSharedMemoryPerBlockOptin) - int(its.sharedSizeBytes), sizes = 1;
    check_cuda(op, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    for (int size = 2; has_clusters(op) && size <= kLargestCluster; size *= 2) {
      int fits = 0;
      cudaLaunchAttribute attribute;
      const cudaLaunchConfig_t config = cluster_config(1, {size, size_t(shared)}, nullptr, attribute);
      if (cudaOccupancyMaxActiveClusters(&fits, kKernel, &config) == cudaSuccess && fits > 0)
        sizes |= size;
      else
        cudaGetLastError();  // it is answered by another launch
    }
    return uint64_t(shared) << 8 | uint64_t(sizes);
  });
  return {size_t(answer >> 8), int(answer & 255)};
}

template <class Argument>
void launch_clusters(const char* op, void (*kernel)(Argument), int64_t clusters, const ClusterShape& shape,
                     cudaStream_t stream, const Argument& argument) {
  cudaLaunchAttribute attribute;
  const cudaLaunchConfig_t config = cluster_config(clusters, shape, stream, attribute);
  check_cuda(op, cudaLaunchKernelEx(&config, kernel, argument));
}
#else
template <auto kKernel>
Allowance allowance_of(const char* op) {
  return {size_t(cuda_on_cpu::device.shared), has_clusters(op) && cuda_on_cpu::device.clusters ? 2 | 4 | 8 | 1 : 1};
}
#endif

// The shape to launch so many clusters in: as wide as the device has SMs for them all at once; and wider where that
// keeps what is to be kept at any price, `always`.
template <auto kKernel>
ClusterShape cluster_shape(const char* op, int64_t clusters, const SharedRoom& room, bool always) {
  const Allowance allowance = allowance_of<kKernel>(op);
  const CudaPath path = cuda_path(op);
  if (path == CudaPath::kCluster && allowance.sizes == 1)
    throw std::runtime_error(std::string(op) + ": SPECDEC_CUDA_PATH=cluster, but this GPU takes no clusters of blocks");
  const int64_t multiprocessors = device_attribute(op, cudaDevAttrMultiProcessorCount);
  ClusterShape shape{1, room.fixed};
  for (int size = 1; size <= kLargestCluster && path != CudaPath::kStreaming; size *= 2) {
    if (!(allowance.sizes & size)) continue;
    const bool keeps = room.parts > 0 && room.in_cluster_of(size) <= allowance.shared;
    const bool asked = path == CudaPath::kCluster && shape.size == 1;
    if (size == 1 || clusters * size <= multiprocessors || asked || (always && keeps && !shape.keeps))
      shape = {size, keeps ? room.in_cluster_of(size) : room.fixed, keeps};
  }
  return shape;
}

}  // namespace specdec
