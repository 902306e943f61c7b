// SPDX-License-Identifier: Apache-2.0
// What the launches tell the watch over memory.
#pragma once

namespace cuda_on_cpu {

void memory_begin_launch();
void memory_begin_block();
void memory_warp_met(int warp);
void memory_block_met();
void memory_fence();
void set_race_check(bool on);
bool memory_checked();  // whether accesses are noted at all: the flavour

}  // namespace cuda_on_cpu
