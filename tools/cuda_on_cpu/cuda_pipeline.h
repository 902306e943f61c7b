// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies to shared memory, by three functions of CUDA's header of this name.
#pragma once

#include "async_copy.h"

inline void __pipeline_memcpy_async(void* to, const void* from, size_t size_and_align, size_t zfill = 0,
                                    cuda_on_cpu::Site site = cuda_on_cpu::Site::current()) {
  cuda_on_cpu::copy_async(to, from, size_and_align, zfill, site);
}
inline void __pipeline_commit() { cuda_on_cpu::commit_copies(); }
inline void __pipeline_wait_prior(size_t newest) { cuda_on_cpu::wait_for_copies(newest); }
