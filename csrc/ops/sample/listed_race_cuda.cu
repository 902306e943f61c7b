// SPDX-License-Identifier: Apache-2.0
// The kernel of race_cuda.cu, compiled for rows with ids (cuda/by_id.h). On the simulated device one kernel reads rows
// with and without ids.
#if !defined(SPECDEC_CUDA_ON_CPU)
#define SPECDEC_READS_IDS
#include "race_cuda.cu"
#endif
