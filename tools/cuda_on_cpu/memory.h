// SPDX-License-Identifier: Apache-2.0
// Shared memory, and the functions by which launches and barriers inform the check of memory accesses.
#pragma once

#include "grid.h"

namespace cuda_on_cpu {

void memory_begin_launch(After after);
void memory_begin_block();
// The blocks of a cluster take turns. Each has its own shared variables, and `shared` bytes that all can access.
void memory_begin_cluster(int size, size_t shared);
void memory_enter(int rank);
void memory_leave(int rank, bool for_good);
void memory_cluster_met();
char* memory_dynamic(int rank);
size_t memory_dynamic_bytes();
bool memory_is_variable(const void* p);  // whether p is in a shared variable
bool memory_is_shared(const void* p);    // whether p is in shared memory of the running block
void memory_warp_met(int warp);
void memory_block_met();
void memory_fence();
void set_race_check(bool on);
bool memory_checked();  // whether accesses are noted: the checked flavour

}  // namespace cuda_on_cpu
