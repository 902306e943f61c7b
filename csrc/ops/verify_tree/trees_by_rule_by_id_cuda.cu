// SPDX-License-Identifier: Apache-2.0
// The same kernels for drafts with ids (cuda/by_id.h)
#define SPECDEC_READS_IDS
#include "trees_by_rule_cuda.cu"
