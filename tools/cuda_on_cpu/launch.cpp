// SPDX-License-Identifier: Apache-2.0
// Launches: blocks run one after another on the same fibers. The blocks of a cluster have fibers of their own, and take
// turns.
#include <cxxabi.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>

#include "async_copy.h"
#include "block.h"
#include "memory.h"

namespace cuda_on_cpu {

Device device;

namespace {

std::mutex
    mutex;  // one launch at a time: a kernel's state is global, and shared variables are those of the launching thread
Order block_order, rank_order;
std::vector<Launch> history;
int cluster = 0;                     // blocks per cluster, in a launch of clusters
thread_local bool launched = false;  // whether this thread's current call of an op has launched a kernel

// Calls set(name, seed) with the value of an environment variable: "random:7" means random with seed 7.
template <class Set>
void from_environment(const char* variable, const Set& set) {
  const char* value = std::getenv(variable);
  const std::string text = value ? value : "ascending";
  const size_t colon = text.find(':');
  set(text.substr(0, colon), colon == std::string::npos ? 1 : std::stoull(text.substr(colon + 1)));
}

void set_orders(const std::string& name, uint64_t seed) {
  block_order.set(name, seed, false);
  rank_order.set(name, seed, false);
}

Block& the_block() {
  static Block* const made = [] {
    auto* b = new Block;
    from_environment("SPECDEC_SCHEDULE",
                     [&](const std::string& name, uint64_t seed) { b->order.set(name, seed, true); });
    from_environment("SPECDEC_BLOCK_ORDER", [](const std::string& name, uint64_t seed) { set_orders(name, seed); });
    return b;
  }();
  return *made;
}

// Returns a block of a cluster. The first one also runs launches without clusters.
Block& block_of(int rank) {
  static std::vector<std::unique_ptr<Block>> others;
  if (rank == 0) return the_block();
  while (int(others.size()) < rank) others.push_back(std::make_unique<Block>());
  others[size_t(rank - 1)]->order = the_block().order;
  return *others[size_t(rank - 1)];
}

// Returns a readable name of an instance. Kernels such as "put_units<kFormat>" are launched from a generic lambda or a
// function template. The name then has the template arguments, which tell instances apart.
std::string readable(const std::string& kernel, const char* type) {
  if (kernel.find('<') == std::string::npos) return kernel;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(type, nullptr, nullptr, nullptr), std::free);
  const std::string name = text ? text.get() : type;
  const size_t end = std::min(name.find(" >("), name.find(">(")), begin = name.find('<');
  return end == std::string::npos ? kernel : kernel + " of " + name.substr(begin + 1, end - begin - 1);
}

struct Running {
  Running() { block = &the_block(), launching = true; }
  ~Running() { block = nullptr, cluster = 0, launching = false; }
};

void check_grid(const std::string& name, int64_t blocks, int64_t threads) {
  if (blocks < 1 || blocks > INT32_MAX || threads < 32 || threads > Block::kMaxThreads || threads % 32)
    throw std::runtime_error("cuda_on_cpu: " + name + ": invalid grid: " + std::to_string(blocks) + " blocks of " +
                             std::to_string(threads));
}

void begin_launch(Instance& instance, int64_t blocks, int64_t threads, After after) {
  history.push_back({instance.name, blocks, after});
  ++instance.launches, launched = true;
  here.blocks = {unsigned(blocks), 1, 1}, here.threads = {unsigned(threads), 1, 1}, here.thread = {}, here.block = {};
  memory_begin_launch(after);
  forget_copies();
}

[[noreturn]] void end(const std::string& name, int64_t index, const std::string& error) {
  throw std::runtime_error("cuda_on_cpu: " + name + ", block " + std::to_string(index) + ", " + error);
}

}  // namespace

void set_schedule(const std::string& name, uint64_t seed) {
  const std::lock_guard lock(mutex);
  the_block().order.set(name, seed, true);
}

void set_block_order(const std::string& name, uint64_t seed) {
  const std::lock_guard lock(mutex);
  the_block();
  set_orders(name, seed);
}

Instance::Instance(const char* kernel, const char* type) : name(readable(kernel, type)) { instances().push_back(this); }

std::vector<Instance*>& instances() {
  static std::vector<Instance*> all;
  return all;
}

void begin_call() { launched = false; }

void before_launches(const char* what) {
  if (launched) throw std::runtime_error(std::string("cuda_on_cpu: ") + what + " after the first launch of a call");
}

void fill_scratch(void* memory, size_t bytes) {
  static std::atomic<unsigned> calls = 0;
  std::memset(memory, calls++ % 2 ? 0xFF : 0, bytes);
}

std::vector<Launch> launches() {
  const std::lock_guard lock(mutex);
  return history;
}

void forget_launches() {
  const std::lock_guard lock(mutex);
  history.clear();
}

void launch(Instance& instance, int64_t blocks, int64_t threads, After after, void (*body)(void*), void* kernel) {
  const std::lock_guard lock(mutex);
  check_grid(instance.name, blocks, threads);
  const Running running;
  begin_launch(instance, blocks, threads, after);
  for (const int64_t index : block_order.round(blocks)) {
    block->begin(index, int(threads), after, body, kernel);
    memory_begin_block();
    if (block->resume()) end(instance.name, index, "it waits for a cluster, and is in none");
    if (block->failed) end(instance.name, index, block->error);
  }
}

// The blocks of a cluster take turns, in any order: each runs until all its threads wait for the others,
// or have exited.
void launch_clusters(Instance& instance, int64_t clusters, int size, int64_t threads, size_t shared, After after,
                     void (*body)(void*), void* kernel) {
  const std::lock_guard lock(mutex);
  check_grid(instance.name, clusters * size, threads);
  if (size < 1 || size > kLargestCluster || shared > size_t(device.shared))
    throw std::runtime_error("cuda_on_cpu: " + instance.name + ": no clusters of " + std::to_string(size) +
                             " blocks with " + std::to_string(shared) + " bytes");
  const Running running;
  begin_launch(instance, clusters * size, threads, after);
  cluster = size;
  for (const int64_t number : block_order.round(clusters)) {
    memory_begin_cluster(size, shared);
    for (int r = 0; r < size; ++r) {
      block_of(r).begin(number * size + r, int(threads), after, body, kernel);
      block_of(r).rank = r;
    }
    for (int waiting = size; waiting;) {
      waiting = 0;
      for (const int64_t r : std::vector<int64_t>(rank_order.round(size))) {
        block = &block_of(int(r));
        memory_enter(int(r));
        const bool waits = block->resume();
        memory_leave(int(r), !waits);
        if (block->failed) end(instance.name, number * size + r, block->error);
        waiting += waits;
      }
      if (waiting && waiting < size)
        end(instance.name, number * size,
            "divergent: " + std::to_string(waiting) + " of " + std::to_string(size) +
                " blocks of a cluster wait for the others, which have exited");
      memory_cluster_met();
      for (int r = 0; r < size; ++r) block_of(r).release();
    }
  }
}

const uint64_t* meet_warp(const char* op, unsigned mask, uint64_t value, const Site& site) {
  return block->meet_warp(op, mask, value, site);
}
Votes meet_block(const char* op, bool vote, const Site& site) { return block->meet_block(op, vote, site); }
void meet_cluster(const char* op, const Site& site) { block->meet_cluster(op, site); }
int cluster_rank() { return block->rank; }
int cluster_size() { return cluster ? cluster : 1; }
char* dynamic_shared() { return memory_dynamic(block->rank); }

void* of_rank(void* shared, int rank) {
  char* const begin = memory_dynamic(block->rank);
  const size_t offset = size_t(static_cast<char*>(shared) - begin);
  if (offset >= memory_dynamic_bytes())
    block->fail("it asks for another block's memory by what is not dynamic shared memory");
  if (rank < 0 || rank >= cluster)
    block->fail("it asks for block " + std::to_string(rank) + " of a cluster of " + std::to_string(cluster));
  if (rank != block->rank && !block->met) block->fail("it asks for another block's memory before its cluster has met");
  return memory_dynamic(rank) + offset;
}

void wait_for_launch() { block->running().waited = true; }
void fence() { memory_fence(); }
unsigned lane() { return here.thread.x % 32; }

void fail(const std::string& what) {
  if (in_kernel()) block->fail(what);
  throw std::runtime_error("cuda_on_cpu: " + what);
}

void check_aligned(const void* address, size_t bytes, const char* op) {
  if (reinterpret_cast<uintptr_t>(address) % bytes)
    fail("misaligned: " + std::string(op) + " of " + std::to_string(bytes) + " bytes at an address that is " +
         std::to_string(reinterpret_cast<uintptr_t>(address) % bytes) + " past a multiple of it");
}

}  // namespace cuda_on_cpu
