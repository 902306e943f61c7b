// SPDX-License-Identifier: Apache-2.0
// Shared memory: poisoned when a block begins, and kept apart for each block of a cluster. The checked flavour also
// checks every access of a kernel to memory other than its threads' stacks.
#include "memory.h"

#include "async_copy.h"
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

namespace {

struct Rank {
  std::vector<char> variables;  // saved while another block runs
  std::vector<char> dynamic;
};
constexpr size_t kPage = 1024;  // the page of Races: dynamic memory shares no such page with anything else
std::vector<Rank> ranks;
size_t dynamic_bytes = 0;

size_t variables_size() { return size_t(specdec_shared_end - specdec_shared_begin); }

}  // namespace

void memory_begin_cluster(int size, size_t shared) {
  ranks.resize(size_t(size));
  dynamic_bytes = shared;
  for (Rank& r : ranks)
    r.variables.assign(variables_size(), char(0xCD)), r.dynamic.assign(shared + 2 * kPage, char(0xCD));
#if defined(SPECDEC_CHECKED)
  races.begin_cluster(size);
  for (int r = 0; r < size; ++r) races.add_dynamic(memory_dynamic(r), shared);
#endif
}

void memory_enter(int rank) {
  std::memcpy(specdec_shared_begin, ranks[size_t(rank)].variables.data(), variables_size());
#if defined(SPECDEC_CHECKED)
  races.enter(rank);
#endif
}

void memory_leave(int rank, [[maybe_unused]] bool for_good) {
  std::memcpy(ranks[size_t(rank)].variables.data(), specdec_shared_begin, variables_size());
#if defined(SPECDEC_CHECKED)
  races.leave(rank, for_good);
#endif
}

void memory_cluster_met() {
#if defined(SPECDEC_CHECKED)
  races.cluster_met();
#endif
}

char* memory_dynamic(int rank) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(ranks[size_t(rank)].dynamic.data());
  return reinterpret_cast<char*>((begin + kPage - 1) / kPage * kPage);
}
size_t memory_dynamic_bytes() { return dynamic_bytes; }

bool memory_is_variable(const void* p) {
  return size_t(static_cast<const char*>(p) - specdec_shared_begin) < variables_size();
}
bool memory_is_shared(const void* p) {
  const size_t rank = size_t(block->rank);
  return memory_is_variable(p) ||
         (rank < ranks.size() && size_t(static_cast<const char*>(p) - memory_dynamic(block->rank)) < dynamic_bytes);
}

void memory_begin_block() {
  std::memset(specdec_shared_begin, 0xCD, variables_size());
#if defined(SPECDEC_CHECKED)
  races.begin_block();
#endif
}

#if defined(SPECDEC_CHECKED)

// Set while an access is checked. Error texts may be built by functions that were compiled, instrumented, in kernels'
// files; their accesses must not be noted.
static bool looking = false;

void memory_begin_launch(After after) {
  looking = false;  // still set if an error ended the launch before
  races.begin_launch(specdec_shared_begin, specdec_shared_end, after);
}
void memory_warp_met(int warp) { races.warp_met(warp); }
void memory_block_met() { races.block_met(); }
void memory_fence() { races.fence(here.thread.x); }
void set_race_check(bool on) { races.on = on; }
bool memory_checked() { return true; }

void note(const void* address, size_t bytes, Access access) {
  if (looking || !in_kernel() || block->owns(address)) return;
  if (size_t(static_cast<const char*>(address) - reinterpret_cast<const char*>(&here)) < sizeof here) return;
  looking = true;
  check_copies(address, bytes, access);
  watches.note(address, bytes, access);
  races.note(address, bytes, access);
  looking = false;
}

#else

void memory_begin_launch(After) {}
void memory_warp_met(int) {}
void memory_block_met() {}
void memory_fence() {}
void set_race_check(bool) {}
bool memory_checked() { return false; }

#endif

}  // namespace cuda_on_cpu
