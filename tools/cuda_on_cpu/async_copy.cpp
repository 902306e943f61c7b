// SPDX-License-Identifier: Apache-2.0
#include "async_copy.h"

#include "block.h"
#include "memory.h"

namespace cuda_on_cpu {

namespace {

struct Copy {
  char* to;
  const char* from;
  size_t bytes, zeros;
  int rank;  // of the thread's block in its cluster
  unsigned thread;
  size_t group;  // number of groups that its thread had committed before
  Site site;

  bool mine() const { return rank == block->rank && thread == here.thread.x; }
};

std::vector<Copy> under_way;                     // of all running blocks
std::vector<size_t> committed[kLargestCluster];  // by rank and thread

size_t& groups_of_thread() {
  auto& groups = committed[block->rank];
  groups.resize(Block::kMaxThreads);
  return groups[here.thread.x];
}

bool meets(const void* a, size_t n, const void* b, size_t m) {
  const auto x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
  return x < y + m && y < x + n;
}

std::string said(const Copy& c) {
  const bool in_group = c.group < committed[c.rank][c.thread];
  return "that thread " + std::to_string(c.thread) + (in_group ? " has not waited for" : " has not committed") + ": " +
         place("cp.async", c.site);
}

}  // namespace

void copy_async(void* to, const void* from, size_t bytes, size_t zeros, const Site& site) {
  if ((bytes != 4 && bytes != 8 && bytes != 16) || zeros > bytes)
    fail(place("cp.async", site) + " of " + std::to_string(bytes) + " bytes, " + std::to_string(zeros) +
         " of them zeros: it takes 4, 8 or 16");
  check_aligned(from, bytes, "cp.async from memory");
  check_aligned(to, bytes, "cp.async to memory");
  if (!memory_is_shared(to)) fail(place("cp.async", site) + " to what is no shared memory of its block");
  // A copy of 16 bytes bypasses L1.
  if (zeros < bytes) note(from, bytes - zeros, bytes == 16 ? Access::read_past_l1 : Access::read);
  note(to, bytes, Access::write);
  std::memset(to, 0xCD, bytes);
  under_way.push_back({static_cast<char*>(to), static_cast<const char*>(from), bytes, zeros, block->rank, here.thread.x,
                       groups_of_thread(), site});
}

void commit_copies() { ++groups_of_thread(); }

void wait_for_copies(size_t newest) {
  const size_t groups = groups_of_thread();
  std::vector<Copy> others, done;
  for (const Copy& c : under_way) (c.mine() && c.group + newest < groups ? done : others).push_back(c);
  under_way = others;
  for (const Copy& c : done) {
    note(c.to, c.bytes, Access::write);
    std::memcpy(c.to, c.from, c.bytes - c.zeros);
    std::memset(c.to + (c.bytes - c.zeros), 0, c.zeros);
  }
}

void forget_copies() {
  under_way.clear();
  for (auto& groups : committed) groups.clear();
}

// The shared variables of all blocks of a cluster have the same address. Such an address means the running block's own.
void check_copies(const void* address, size_t bytes, Access access) {
  if (under_way.empty()) return;
  for (const Copy& c : under_way) {
    if ((c.rank == block->rank || !memory_is_variable(c.to)) && meets(address, bytes, c.to, c.bytes))
      fail("it touches the destination of a copy " + said(c));
    const bool writes = access == Access::write || access == Access::atomic;
    if (writes && meets(address, bytes, c.from, c.bytes - c.zeros))
      fail("it writes to the source of a copy " + said(c));
  }
}

void check_thread_left_no_copy() {
  for (const Copy& c : under_way)
    if (c.mine()) fail("it exits with a copy " + said(c));
}

}  // namespace cuda_on_cpu
