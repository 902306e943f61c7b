// SPDX-License-Identifier: Apache-2.0
// Launches on clusters of blocks: how many blocks a cluster gets, and whether the device allows it.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "launch.h"

namespace specdec {

struct ClusterShape {
  int size = 1;        // blocks
  size_t shared = 0;   // bytes of dynamic shared memory per block
  bool keeps = false;  // whether the blocks have room for all parts of the SharedRoom

  int64_t blocks(int64_t clusters) const { return clusters * size; }
};

// The dynamic shared memory that a kernel asks for: `fixed` bytes in every block, and `parts` pieces of `each` bytes,
// which are dealt in turn to the blocks of a cluster. If the pieces do not all fit, a block gets the fixed bytes alone.
struct SharedRoom {
  size_t fixed = 0;
  int64_t parts = 0;
  size_t each = 0;

  size_t in_cluster_of(int size) const { return fixed + size_t((parts + size - 1) / size) * each; }
};

constexpr int kLargestCluster = 8;  // every GPU with clusters allows it

// SPECDEC_CUDA_PATH forces a choice. With `cluster`, clusters have more than one block. With `streaming`, they have one
// block, and verify_chain does not take its path for small batches. If it is not set, cluster_shape() chooses.
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

// What a device allows a kernel: the most dynamic shared memory of a block, and how many clusters of each size run at
// once with that much. A cluster lies within one group of SMs, so fewer clusters fit than the number of SMs suggests.
// On a device that is partitioned or shared too finely, no cluster of a size may fit. All numbers are packed into one
// integer, which OncePerDevice can cache.
class Allowance {
 public:
  // fits(size) returns how many clusters of `size` >= 2 blocks run at once.
  template <class Fits>
  static Allowance of(size_t shared, const Fits& fits) {
    uint64_t packed = shared;
    for (int size = 2, at = kBitsOfShared; size <= kLargestCluster; size *= 2, at += kBits)
      packed |= uint64_t(std::min(fits(size), kMost)) << at;
    return Allowance(packed);
  }
  explicit Allowance(uint64_t packed) : packed_(packed) {}
  uint64_t packed() const { return packed_; }

  size_t shared() const { return packed_ & ((uint64_t{1} << kBitsOfShared) - 1); }
  // How many clusters of `size` blocks run at once; `size` must be at least 2.
  int fits(int size) const {
    int at = kBitsOfShared;
    while (size > 2) size /= 2, at += kBits;
    return int(packed_ >> at & kMost);
  }
  bool clusters() const { return packed_ >> kBitsOfShared != 0; }

 private:
  static constexpr int kBitsOfShared = 20, kBits = 14, kMost = (1 << kBits) - 1;
  static_assert(kLargestCluster == 8 && kBitsOfShared + 3 * kBits < 64);
  uint64_t packed_;
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
  config.attrs = &attribute, config.numAttrs = shape.size > 1;  // devices without clusters reject the attribute
  return config;
}

template <auto kKernel>
Allowance allowance_of(const char* op) {
  static OncePerDevice known;
  return Allowance(known(op, [&] {
    const void* const kernel = reinterpret_cast<const void*>(kKernel);
    cudaFuncAttributes its{};
    check_cuda(op, cudaFuncGetAttributes(&its, kernel));
    const int shared = device_attribute(op, cudaDevAttrMaxSharedMemoryPerBlockOptin) - int(its.sharedSizeBytes);
    check_cuda(op, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    const bool any = has_clusters(op);
    return Allowance::of(size_t(shared),
                         [&](int size) {
                           int fits = 0;
                           cudaLaunchAttribute attribute;
                           const cudaLaunchConfig_t config =
                               cluster_config(1, {size, size_t(shared)}, nullptr, attribute);
                           if (any && cudaOccupancyMaxActiveClusters(&fits, kKernel, &config) == cudaSuccess)
                             return std::max(fits, 0);
                           cudaGetLastError();  // clears the error of the query: no cluster of this size fits
                           return 0;
                         })
        .packed();
  }));
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
  const bool any = has_clusters(op);
  return Allowance::of(size_t(cuda_on_cpu::device.shared),
                       [&](int size) { return any ? cuda_on_cpu::device.active_clusters(size) : 0; });
}
#endif

// Chooses the shape for launching `clusters` clusters: the largest size at which they all run at once. If no such size
// has room for the parts of `room`, a larger size that has room is used, provided that the clusters run in at most
// `turns_to_keep` turns.
template <auto kKernel>
ClusterShape cluster_shape(const char* op, int64_t clusters, const SharedRoom& room, int turns_to_keep = 1) {
  const Allowance allowance = allowance_of<kKernel>(op);
  const CudaPath path = cuda_path(op);
  if (path == CudaPath::kCluster && !allowance.clusters())
    throw std::runtime_error(std::string(op) + ": SPECDEC_CUDA_PATH=cluster, but this GPU takes no clusters of blocks");
  ClusterShape shape{1, room.fixed};
  for (int size = 1; size <= kLargestCluster && path != CudaPath::kStreaming; size *= 2) {
    const int64_t fits = size > 1 ? allowance.fits(size) : clusters;
    if (!fits) continue;
    const bool keeps = room.parts > 0 && room.in_cluster_of(size) <= allowance.shared();
    const bool asked = path == CudaPath::kCluster && shape.size == 1;
    const int turns = keeps && !shape.keeps ? turns_to_keep : 1;
    if (clusters <= turns * fits || asked) shape = {size, keeps ? room.in_cluster_of(size) : room.fixed, keeps};
  }
  return shape;
}

}  // namespace specdec
