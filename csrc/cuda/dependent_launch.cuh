// SPDX-License-Identifier: Apache-2.0
// Two launches of which the second begins while the first still runs (programmatic dependent launch, from sm_90 on).
// The first says let_next_begin(); each thread of the second says wait_for_launch() before it reads what the first
// wrote, writes anything or exits, and until then looks at the caller's inputs alone. The first itself begins as any
// launch does, after all that wrote those inputs. Behind the wait nothing has invalidated L1: what the first launch
// also loads, and not only writes, is read by __ldcg.
#pragma once

#include "launch.h"
#include "groups.cuh"

#if defined(SPECDEC_CUDA_ON_CPU)
#define SPECDEC_LAUNCH_DEPENDENT(op, kernel, blocks, stream, argument)               \
  (specdec::check_grid(op, blocks),                                                  \
   cuda_on_cpu::launch(                                                              \
       [] { return #kernel; }, blocks, specdec::kThreads, [=] { kernel(argument); }, \
       cuda_on_cpu::device.major >= 9 ? cuda_on_cpu::After::the_beginning : cuda_on_cpu::After::the_end))
#else
#define SPECDEC_LAUNCH_DEPENDENT(op, kernel, blocks, stream, argument) \
  (specdec::check_grid(op, blocks), specdec::launch_dependent<kernel>(op, blocks, stream, argument))
#endif

namespace specdec {

// By any thread of a block; once all blocks have said it, or are done, the next launch may begin.
SPECDEC_DEVICE void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Until the launch before is done and all that it wrote can be seen; nothing where the launch began after its end
SPECDEC_DEVICE void wait_for_launch() {
#if defined(SPECDEC_CUDA_ON_CPU)
  cuda_on_cpu::wait_for_launch();
#elif __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#if !defined(SPECDEC_CUDA_ON_CPU)
// Whether the code of a kernel that runs on this device waits
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
  config.attrs = &attribute, config.numAttrs = waits_for_launch<kKernel>(op);
  check_cuda(op, cudaLaunchKernelEx(&config, kKernel, argument));
}
#endif

}  // namespace specdec
