// SPDX-License-Identifier: Apache-2.0
// cp.async: a copy is done at the last moment at which it may be, when its thread waits for its group. Until then its
// destination is poisoned, and nobody may touch it or write to its source.
#pragma once

#include "grid.h"

namespace cuda_on_cpu {

void copy_async(void* to, const void* from, size_t bytes, size_t zeros, const Site& site);
void commit_copies();
// For all groups that the thread committed but the newest ones
void wait_for_copies(size_t newest);

// What the launches tell it
void forget_copies();
void check_copies(const void* address, size_t bytes, Access access);
void check_thread_left_no_copy();

}  // namespace cuda_on_cpu
