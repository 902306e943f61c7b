// SPDX-License-Identifier: Apache-2.0
// cp.async: a copy is made at the last allowed moment, when its thread waits for its group. Until then its destination
// is poisoned, and no thread may touch it or write to its source.
#pragma once

#include "grid.h"

namespace cuda_on_cpu {

void copy_async(void* to, const void* from, size_t bytes, size_t zeros, const Site& site);
void commit_copies();
// Waits for all groups that the thread committed, except the last `newest` ones.
void wait_for_copies(size_t newest);

// Called by launches and by the record of accesses.
void forget_copies();
void check_copies(const void* address, size_t bytes, Access access);
void check_thread_left_no_copy();

}  // namespace cuda_on_cpu
