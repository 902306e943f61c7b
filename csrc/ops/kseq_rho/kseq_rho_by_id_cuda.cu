// SPDX-License-Identifier: Apache-2.0
// The same kernels for drafts with ids (cuda/by_id.h)
#define SPECDEC_READS_IDS
#include "kseq_rho_cuda.cu"
