// SPDX-License-Identifier: Apache-2.0
// How every kernel is launched: on torch's current stream of the arguments' device, in blocks of 256 threads, with
// errors that name the op. The .cu files include none of torch's headers, which take nvcc longer than most kernels:
// launch.cpp has what calls torch, and X_op_cuda.cpp registers the op X.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>

// With SPECDEC_CUDA_ON_CPU the same files are compiled for the host and run on a simulated GPU (tools/cuda_on_cpu).
#if defined(SPECDEC_CUDA_ON_CPU)
#define SPECDEC_CUDA_KEY CPU
#define SPECDEC_LAUNCH(op, kernel, blocks, stream, ...) \
  (specdec::check_grid(op, blocks),                     \
   cuda_on_cpu::launch([] { return #kernel; }, blocks, specdec::kThreads, [=] { kernel(__VA_ARGS__); }))
#define SPECDEC_LAUNCH_CLUSTERS(op, kernel, clusters, shape, stream, argument)                                 \
  (specdec::check_grid(op, (clusters) * shape.size),                                                           \
   cuda_on_cpu::launch_clusters([] { return #kernel; }, clusters, shape.size, specdec::kThreads, shape.shared, \
                                [=] { kernel(argument); }))
#define SPECDEC_DYNAMIC_SHARED(name) char* const name = cuda_on_cpu::dynamic_shared()
#else
#define SPECDEC_LAUNCH_CLUSTERS(op, kernel, clusters, shape, stream, argument) \
  (specdec::check_grid(op, (clusters) * shape.size),                           \
   specdec::launch_clusters(op, kernel, clusters, shape, stream, argument))
#define SPECDEC_DYNAMIC_SHARED(name) extern __shared__ __align__(128) char name[]
#define SPECDEC_CUDA_KEY CUDA
#define SPECDEC_LAUNCH(op, kernel, blocks, stream, ...)                                                      \
  (specdec::check_grid(op, blocks), kernel<<<unsigned(blocks), specdec::kThreads, 0, stream>>>(__VA_ARGS__), \
   specdec::check_cuda(op, cudaGetLastError()))
#endif

// The GPU architectures that this binary was compiled for, written as in "8.0;9.0;12.0+PTX"
extern "C" const char* specdec_cuda_archs();

namespace torch::stable {
class Tensor;
}

namespace specdec {

using torch::stable::Tensor;

constexpr int kThreads = 256;

inline void check_cuda(const char* op, cudaError_t error) {
  if (error == cudaSuccess) return;
  std::ostringstream text;
  text << op << ": ";
#if !defined(SPECDEC_CUDA_ON_CPU)
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
    int device = 0, major = 0, minor = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    text << "this GPU is of arch " << major << '.' << minor << ", the binary has kernels for " << specdec_cuda_archs()
         << "; set SPECDEC_BACKEND=triton, or rebuild with TORCH_CUDA_ARCH_LIST=\"" << major << '.' << minor
         << "\" pip install --no-build-isolation .";
    throw std::runtime_error(text.str());
  }
#endif
  text << "CUDA error: " << cudaGetErrorString(error);
  throw std::runtime_error(text.str());
}

// Caches the result of ask(), which must not be 0, for each of the first kDevices devices: only the first call on a
// device runs ask(). It runs before the launch and puts nothing on the stream, so that a CUDA graph captures only the
// launch.
class OncePerDevice {
 public:
  template <class Ask>
  uint64_t operator()(const char* op, const Ask& ask) {
    int device = 0;
    check_cuda(op, cudaGetDevice(&device));
    uint64_t answer = device < kDevices ? known_[device].load() : 0;
    if (!answer) {
      answer = ask();
      if (device < kDevices) known_[device] = answer;
    }
    return answer;
  }

 private:
  static constexpr int kDevices = 64;
  std::atomic<uint64_t> known_[kDevices]{};
};

inline void check_grid(const char* op, int64_t blocks) {
  if (blocks > INT32_MAX)
    throw std::runtime_error(std::string(op) + ": the rows need " + std::to_string(blocks) +
                             " blocks, a launch has at most 2^31 - 1");
}

// Makes the device of `like` the current one until this is destroyed. `stream` is torch's current stream on it.
class OnDeviceOf {
 public:
  explicit OnDeviceOf(const Tensor& like);
  ~OnDeviceOf();
  OnDeviceOf(const OnDeviceOf&) = delete;
  OnDeviceOf& operator=(const OnDeviceOf&) = delete;

  cudaStream_t stream{};

 private:
  void* guard_ = nullptr;
};

// Scratch memory of a call, cut from one allocation that is made before the call's first launch. First call ask() for
// every piece, then allocate(), then at() with the offset that ask() returned.
class Scratch {
 public:
  template <class T>
  size_t ask(int64_t n) {
    const size_t at = bytes_;
    bytes_ += (size_t(n) * sizeof(T) + 15) / 16 * 16;
    return at;
  }
  void allocate(const Tensor& like);
  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(begin_ + offset);
  }

 private:
  size_t bytes_ = 0;
  char* begin_ = nullptr;
  std::shared_ptr<Tensor> memory_;
};

// How many chunks each warp takes, one after another. It is 1 while there are few chunks, so that many blocks share
// them. With more chunks it grows, to launch fewer blocks. No result depends on it.
inline int chunks_per_warp(int64_t rows, int64_t chunks) {
  const int64_t all = rows * chunks;
  return all <= 1 << 12 ? 1 : all <= 1 << 14 ? 2 : 3;
}

// The same for pairs of rows. Their blocks take longer, and fewer of them fit an SM.
inline int pair_chunks_per_warp(int64_t rows, int64_t chunks) {
  const int64_t all = rows * chunks;
  return all <= 1 << 11 ? 1 : all <= 1 << 13 ? 2 : 3;
}

inline int blocks_per_row(int64_t chunks, int per_warp) {
  const int64_t per_block = int64_t{kThreads / 32} * per_warp;
  return int((chunks + per_block - 1) / per_block);
}

}  // namespace specdec
