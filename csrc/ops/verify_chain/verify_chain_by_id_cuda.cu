// SPDX-License-Identifier: Apache-2.0
// The kernels of verify_chain_cuda.cu, compiled for drafts with ids (cuda/by_id.h)
#define SPECDEC_READS_IDS
#include "verify_chain_cuda.cu"
