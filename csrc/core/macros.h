// SPDX-License-Identifier: Apache-2.0
#pragma once

// Defined in code that belongs to a CUDA library, real or simulated
#if defined(__CUDACC__) || defined(SPECDEC_CUDA_ON_CPU)
#define SPECDEC_IN_CUDA
#endif

// SPECDEC_HD marks functions for host and device. SPECDEC_WALK marks parts of a walk (the sequential verification of
// one request) that are so long that the device's compiler would not inline them. A call would move the walk's state
// from registers to the stack.
#if defined(__CUDACC__)
#define SPECDEC_HD __host__ __device__ inline
#define SPECDEC_WALK __host__ __device__ __forceinline__
#else
#define SPECDEC_HD inline
#define SPECDEC_WALK inline
#endif
