// SPDX-License-Identifier: Apache-2.0
// Launches: blocks one after another, each on the same fibers.
#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <mutex>

#include "block.h"
#include "memory.h"

namespace cuda_on_cpu {

Device device;

namespace {

std::mutex
    mutex;  // one launch at a time: a kernel's state is global, its shared variables belong to the launching thread
Order block_order;
std::vector<Launch> history;

// "random:7" -> random with seed 7
template <class Set>
void from_environment(const char* variable, const Set& set) {
  const char* value = std::getenv(variable);
  const std::string text = value ? value : "ascending";
  const size_t colon = text.find(':');
  set(text.substr(0, colon), colon == std::string::npos ? 1 : std::stoull(text.substr(colon + 1)));
}

Block& the_block() {
  static Block* const made = [] {
    auto* b = new Block;
    from_environment("SPECDEC_SCHEDULE",
                     [&](const std::string& name, uint64_t seed) { b->order.set(name, seed, true); });
    from_environment("SPECDEC_BLOCK_ORDER",
                     [](const std::string& name, uint64_t seed) { block_order.set(name, seed, false); });
    return b;
  }();
  return *made;
}

// "put_units<kFormat>" is launched from a generic lambda: what that was called with tells its instances apart.
std::string readable(const std::string& kernel, const char* type) {
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(type, nullptr, nullptr, nullptr), std::free);
  const std::string name = text ? text.get() : type;
  const size_t begin = name.find("operator()<"), end = name.find(" >(", begin);
  return begin == std::string::npos ? kernel : kernel + " of " + name.substr(begin + 11, end - begin - 11);
}

struct Running {
  Running() { block = &the_block(); }
  ~Running() { block = nullptr; }
};

}  // namespace

void set_schedule(const std::string& name, uint64_t seed) {
  const std::lock_guard lock(mutex);
  the_block().order.set(name, seed, true);
}

void set_block_order(const std::string& name, uint64_t seed) {
  const std::lock_guard lock(mutex);
  the_block();
  block_order.set(name, seed, false);
}

Instance::Instance(const char* kernel, const char* type) : name(readable(kernel, type)) { instances().push_back(this); }

std::vector<Instance*>& instances() {
  static std::vector<Instance*> all;
  return all;
}

std::vector<Launch> launches() {
  const std::lock_guard lock(mutex);
  return history;
}

void forget_launches() {
  const std::lock_guard lock(mutex);
  history.clear();
}

void launch(Instance& instance, int64_t blocks, int64_t threads, void (*body)(void*), void* kernel) {
  const std::lock_guard lock(mutex);
  const std::string& name = instance.name;
  if (blocks < 1 || blocks > INT32_MAX || threads < 32 || threads > Block::kMaxThreads || threads % 32)
    throw std::runtime_error("cuda_on_cpu: " + name + ": invalid grid: " + std::to_string(blocks) + " blocks of " +
                             std::to_string(threads));
  const Running running;
  history.push_back({name, blocks});
  ++instance.launches;
  here.blocks = {unsigned(blocks), 1, 1}, here.threads = {unsigned(threads), 1, 1}, here.thread = {}, here.block = {};
  memory_begin_launch();
  for (const int64_t index : block_order.round(blocks)) {
    block->run(index, int(threads), body, kernel);
    if (block->failed)
      throw std::runtime_error("cuda_on_cpu: " + name + ", block " + std::to_string(index) + ", " + block->error);
  }
}

const uint64_t* meet_warp(const char* op, unsigned mask, uint64_t value, const Site& site) {
  return block->meet_warp(op, mask, value, site);
}
Votes meet_block(const char* op, bool vote, const Site& site) { return block->meet_block(op, vote, site); }
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
