// SPDX-License-Identifier: Apache-2.0
// The kernels of requests_cuda.cu, compiled for drafts with ids (cuda/by_id.h)
#define SPECDEC_READS_IDS
#include "requests_cuda.cu"
