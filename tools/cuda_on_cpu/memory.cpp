// SPDX-License-Identifier: Apache-2.0
// Every access of a kernel passes here in the checked flavour; in the fast one only shared memory is poisoned.
#include "memory.h"

#include "block.h"
#if defined(SPECDEC_CHECKED)
#include "race.h"
#include "watch.h"
#endif

extern "C" {
extern __attribute__((visibility("hidden"))) thread_local char specdec_shared_begin[64];
extern __attribute__((visibility("hidden"))) thread_local char specdec_shared_end[64];
}

namespace cuda_on_cpu {

void memory_begin_block() {
  std::memset(specdec_shared_begin, 0xCD, size_t(specdec_shared_end - specdec_shared_begin));
#if defined(SPECDEC_CHECKED)
  races.begin_block();
#endif
}

#if defined(SPECDEC_CHECKED)

void memory_begin_launch() { races.begin_launch(specdec_shared_begin, specdec_shared_end); }
void memory_warp_met(int warp) { races.warp_met(warp); }
void memory_block_met() { races.block_met(); }
void memory_fence() { races.fence(here.thread.x); }
void set_race_check(bool on) { races.on = on; }
bool memory_checked() { return true; }

void note(const void* address, size_t bytes, Access access) {
  if (!in_kernel() || block->owns(address)) return;
  if (size_t(static_cast<const char*>(address) - reinterpret_cast<const char*>(&here)) < sizeof here) return;
  watches.note(address, bytes, access);
  races.note(address, bytes, access);
}

#else

void memory_begin_launch() {}
void memory_warp_met(int) {}
void memory_block_met() {}
void memory_fence() {}
void set_race_check(bool) {}
bool memory_checked() { return false; }

#endif

}  // namespace cuda_on_cpu
