// SPDX-License-Identifier: Apache-2.0
#pragma once

// What is part of a CUDA library, real or simulated
#if defined(__CUDACC__) || defined(SPECDEC_CUDA_ON_CPU)
#define SPECDEC_IN_CUDA
#endif

// A rule marked SPECDEC_HD is compiled for the host and for the device. One marked SPECDEC_WALK is part of a walk so
// long that the device's compiler would not inline it, and would move all that the walk knows from registers to the
// stack.
#if defined(__CUDACC__)
#define SPECDEC_HD __host__ __device__ inline
#define SPECDEC_WALK __host__ __device__ __forceinline__
#else
#define SPECDEC_HD inline
#define SPECDEC_WALK inline
#endif
