// SPDX-License-Identifier: Apache-2.0
// The same kernel for rows with ids (cuda/by_id.h). On the simulated device one kernel reads both.
#if !defined(SPECDEC_CUDA_ON_CPU)
#define SPECDEC_READS_IDS
#include "race_cuda.cu"
#endif
