// SPDX-License-Identifier: Apache-2.0
// The GPU architectures that the CUDA library was compiled for (launch.h)
#if !defined(SPECDEC_CUDA_ARCHS)
#define SPECDEC_CUDA_ARCHS ""
#endif

extern "C" __attribute__((visibility("default"))) const char* specdec_cuda_archs() { return SPECDEC_CUDA_ARCHS; }
