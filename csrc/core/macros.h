// SPDX-License-Identifier: Apache-2.0
#pragma once

// Defined in code compiled for CUDA: by nvcc, or for the simulated device (CUDA kernels compiled for the CPU)
#if defined(__CUDACC__) || defined(SPECDEC_CUDA_ON_CPU)
#define SPECDEC_IN_CUDA
#endif

// SPECDEC_HD marks functions for host and device; SPECDEC_HD_DECLARED marks the declaration of one that a file with
// kernels defines. SPECDEC_WALK does the same and also forces nvcc to inline. It is for
// the long functions of a walk, the sequential verification of one request: a call that is not inlined would move the
// walk's state from registers to the stack.
#if defined(__CUDACC__)
#define SPECDEC_HD __host__ __device__ inline
#define SPECDEC_HD_DECLARED __host__ __device__
#define SPECDEC_WALK __host__ __device__ __forceinline__
#else
#define SPECDEC_HD inline
#define SPECDEC_HD_DECLARED
#define SPECDEC_WALK inline
#endif
