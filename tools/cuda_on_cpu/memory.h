// SPDX-License-Identifier: Apache-2.0
// What the launches tell the watch over memory.
#pragma once

#include "grid.h"

namespace cuda_on_cpu {

void memory_begin_launch(After after);
void memory_begin_block();
// Clusters: the blocks of one take turns; each has shared variables of its own and `shared` bytes that all see.
void memory_begin_cluster(int size, size_t shared);
void memory_enter(int rank);
void memory_leave(int rank, bool for_good);
void memory_cluster_met();
char* memory_dynamic(int rank);
size_t memory_dynamic_bytes();
bool memory_is_variable(const void* p);  // a shared one
bool memory_is_shared(const void* p);    // of the block that runs
void memory_warp_met(int warp);
void memory_block_met();
void memory_fence();
void set_race_check(bool on);
bool memory_checked();  // whether accesses are noted at all: the flavour

}  // namespace cuda_on_cpu
