// SPDX-License-Identifier: Apache-2.0
// The kernels of trees_by_rule_cuda.cu, compiled for drafts with ids (cuda/by_id.h)
#define SPECDEC_READS_IDS
#include "trees_by_rule_cuda.cu"
