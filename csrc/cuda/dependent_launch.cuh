// SPDX-License-Identifier: Apache-2.0
// Two launches of which the second may begin while the first still runs (programmatic dependent launch, sm_90 and
// newer). The first calls let_next_begin(). Each thread of the second calls wait_for_launch() before it reads what the
// first wrote, before it writes anything, and before it exits. Until then it reads only the caller's inputs. Those are
// complete: the first is an ordinary launch, which begins after all writes to them. The wait does not invalidate L1. So
// if the first launch both loads and writes some memory, the second reads it by __ldcg, which does not use L1.
#pragma once

#include <cstdlib>
#include <cstring>

#include "launch.h"
#include "groups.cuh"

#if defined(SPECDEC_CUDA_ON_CPU)
#define SPECDEC_LAUNCH_DEPENDENT(op, kernel, blocks, stream, argument)                                     \
  (specdec::check_grid(op, blocks), cuda_on_cpu::launch([] { return #kernel; }, blocks, specdec::kThreads, \
                                                        [=] { kernel(argument); }, specdec::begins_after(op)))
#else
#define SPECDEC_LAUNCH_DEPENDENT(op, kernel, blocks, stream, argument) \
  (specdec::check_grid(op, blocks), specdec::launch_dependent<kernel>(op, blocks, stream, argument))
#endif

namespace specdec {

// SPECDEC_CUDA_OVERLAP=0 turns the overlap off, to measure what it saves. The results have the same bits.
inline bool launches_overlap(const char* op) {
  const char* asked = std::getenv("SPECDEC_CUDA_OVERLAP");
  if (!asked || !*asked || !std::strcmp(asked, "1")) return true;
  if (!std::strcmp(asked, "0")) return false;
  throw std::runtime_error(std::string(op) + ": SPECDEC_CUDA_OVERLAP must be 0 or 1, got " + asked);
}

#if defined(SPECDEC_CUDA_ON_CPU)
inline cuda_on_cpu::After begins_after(const char* op) {
  const bool beside = cuda_on_cpu::device.major >= 9 && launches_overlap(op);
  return beside ? cuda_on_cpu::After::the_beginning : cuda_on_cpu::After::the_end;
}
#endif

// Called by any thread of a block. The next launch may begin once every block has called this or exited.
SPECDEC_DEVICE void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Waits until the previous launch is complete and all its writes are visible. Returns at once if this launch began
// after that.
SPECDEC_DEVICE void wait_for_launch() {
#if defined(SPECDEC_CUDA_ON_CPU)
  cuda_on_cpu::wait_for_launch();
#elif __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#if !defined(SPECDEC_CUDA_ON_CPU)
// Whether the code of the kernel that this device runs was compiled with the wait, for sm_90 or newer
template <auto kKernel>
bool waits_for_launch(const char* op) {
  static OncePerDevice known;
  const uint64_t answer = known(op, [&]() -> uint64_t {
    cudaFuncAttributes its{};
    check_cuda(op, cudaFuncGetAttributes(&its, reinterpret_cast<const void*>(kKernel)));
    return its.ptxVersion >= 90 ? 2 : 1;  // the architecture that it was compiled for
  });
  return answer == 2;
}

template <auto kKernel, class Argument>
void launch_dependent(const char* op, int64_t blocks, cudaStream_t stream, const Argument& argument) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(blocks)), config.blockDim = dim3(kThreads), config.stream = stream;
  config.attrs = &attribute, config.numAttrs = launches_overlap(op) && waits_for_launch<kKernel>(op);
  check_cuda(op, cudaLaunchKernelEx(&config, kKernel, argument));
}
#endif

}  // namespace specdec
