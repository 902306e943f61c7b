// SPDX-License-Identifier: Apache-2.0
#if !defined(SPECDEC_CUDA_ARCHS)
#define SPECDEC_CUDA_ARCHS ""
#endif

extern "C" __attribute__((visibility("default"))) const char* specdec_cuda_archs() { return SPECDEC_CUDA_ARCHS; }
