// SPDX-License-Identifier: Apache-2.0
// Which launches go to clusters of blocks: how many blocks a cluster has, and whether the device takes it.
#pragma once

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "launch.h"

namespace specdec {

struct ClusterShape {
  int size = 0;       // blocks; 0: none fits
  size_t shared = 0;  // bytes of dynamic shared memory, each
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

// The smallest cluster in which `parts` of `bytes` each, dealt out in turn, and `fixed` bytes more find room in every
// block; wider as long as the device has SMs to spare for `clusters` of them.
inline ClusterShape cluster_shape(const char* op, int64_t clusters, int64_t parts, size_t bytes, size_t fixed) {
  ClusterShape found;
  if (device_attribute(op, cudaDevAttrComputeCapabilityMajor) < 9) return found;
  const size_t most = size_t(device_attribute(op, cudaDevAttrMaxSharedMemoryPerBlockOptin));
  const int64_t multiprocessors = device_attribute(op, cudaDevAttrMultiProcessorCount);
  for (int size = 2; size <= kLargestCluster; size *= 2) {
    const size_t shared = fixed + size_t((parts + size - 1) / size) * bytes;
    if (shared > most) continue;
    if (found.size && clusters * size > multiprocessors) break;
    found = {size, shared};
  }
  return found;
}

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
  config.attrs = &attribute, config.numAttrs = 1;
  return config;
}

// Whether the device takes clusters of so many blocks, each with all the shared memory that it may have: not where it
// is partitioned, or shared, too finely. Asked once for each kernel, device and size, before a launch that may be
// captured.
template <auto kKernel>
bool takes_clusters(const ClusterShape& shape) {
  static std::atomic<uint8_t> known[64][kLargestCluster + 1];  // 0: not asked, 1: no, 2: yes
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= 64) return false;
  std::atomic<uint8_t>& answer = known[device][shape.size];
  if (!answer) {
    const void* const kernel = reinterpret_cast<const void*>(kKernel);
    int most = 0, fits = 0;
    cudaFuncAttributes its{};
    bool fine = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess &&
                cudaFuncGetAttributes(&its, kernel) == cudaSuccess;
    most -= int(its.sharedSizeBytes);
    fine = fine && cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most) == cudaSuccess;
    cudaLaunchAttribute attribute;
    const cudaLaunchConfig_t config = cluster_config(1, {shape.size, size_t(most)}, nullptr, attribute);
    fine = fine && cudaOccupancyMaxActiveClusters(&fits, kKernel, &config) == cudaSuccess && fits > 0;
    if (!fine) cudaGetLastError();  // it is answered by another launch
    answer = fine ? 2 : 1;
  }
  return answer == 2;
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
bool takes_clusters(const ClusterShape&) {
  return cuda_on_cpu::device.clusters;
}
#endif

// The shape to launch; of size 0 where the streaming kernel is to run.
template <auto kKernel>
ClusterShape clusters_for(const char* op, const ClusterShape& shape) {
  const CudaPath path = cuda_path(op);
  const bool fits = path != CudaPath::kStreaming && shape.size > 0 && takes_clusters<kKernel>(shape);
  if (path == CudaPath::kCluster && !fits)
    throw std::runtime_error(std::string(op) +
                             ": SPECDEC_CUDA_PATH=cluster, but this GPU takes no cluster of blocks "
                             "that holds these rows");
  return fits ? shape : ClusterShape{};
}

}  // namespace specdec
