// SPDX-License-Identifier: Apache-2.0
// The simulated device's interface to kernels: launches, barriers, and the check of memory accesses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <stdexcept>
#include <string>
#include <typeinfo>
#include <vector>

namespace cuda_on_cpu {

using Site = std::source_location;

constexpr int kLargestCluster = 16;  // blocks

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

struct Position {
  Index thread, block, threads, blocks;
};
inline Position here;  // of the thread that runs

inline bool launching = false;  // whether a kernel runs
// Must be called before a read of device memory. Throws outside of a kernel.
inline void reads_device() {
  if (!launching) throw std::runtime_error("cuda_on_cpu: the host reads what lies on a device");
}

// A kernel with its template arguments, for which the library contains a launch. It is listed even if it never runs.
struct Instance {
  Instance(const char* kernel, const char* type);
  std::string name;
  int64_t launches = 0;
};
std::vector<Instance*>& instances();

template <class Name, class Kernel>
inline Instance compiled{Name{}(), typeid(Kernel).name()};

// Whether a launch begins after the launch before it has ended, or while that one still runs. In the second case every
// thread of the launch must call wait_for_launch().
enum class After : bool { the_end, the_beginning };

// Runs `body(kernel)` for every thread of every block, on this OS thread; one launch at a time in the process.
void launch(Instance& instance, int64_t blocks, int64_t threads, After after, void (*body)(void*), void* kernel);

// `Name` is the type of a lambda that returns the kernel's name. Types alone define an instance, so all instances are
// listed before any launch.
template <class Name, class Kernel>
void launch(Name, int64_t blocks, int64_t threads, Kernel kernel, After after = After::the_end) {
  launch(compiled<Name, Kernel>, blocks, threads, after, [](void* k) { (*static_cast<Kernel*>(k))(); }, &kernel);
}

// The same for clusters: the `size` blocks of a cluster take turns. Each has `shared` bytes of dynamic shared memory
// that the others can access.
void launch_clusters(Instance& instance, int64_t clusters, int size, int64_t threads, size_t shared, After after,
                     void (*body)(void*), void* kernel);

template <class Name, class Kernel>
void launch_clusters(Name, int64_t clusters, int size, int64_t threads, size_t shared, Kernel kernel,
                     After after = After::the_end) {
  launch_clusters(
      compiled<Name, Kernel>, clusters, size, threads, shared, after, [](void* k) { (*static_cast<Kernel*>(k))(); },
      &kernel);
}

// All lanes of the warp pass a value at the same call; each gets all 32 values.
const uint64_t* meet_warp(const char* op, unsigned mask, uint64_t value, const Site& site);

struct Votes {
  int yes = 0, all = 0;
};
// All threads of the block pass a vote at the same call.
Votes meet_block(const char* op, bool vote, const Site& site);

// All threads of all blocks of the cluster meet at the same call.
void meet_cluster(const char* op, const Site& site);
int cluster_rank();
int cluster_size();
char* dynamic_shared();
// Returns the address of the same place in the dynamic shared memory of another block of the cluster.
void* of_rank(void* shared, int rank);

// Waits for the launch before. Every thread of a launch that began while that one ran must call it.
void wait_for_launch();

void fence();
unsigned lane();

enum class Access : uint8_t { read, read_only, read_past_l1, write, atomic };

#if defined(SPECDEC_CHECKED)
void note(const void* address, size_t bytes, Access access);
#else
inline void note(const void*, size_t, Access) {}
#endif

void check_aligned(const void* address, size_t bytes, const char* op);

// In a kernel, ends the launch with an error that names kernel, block and thread; elsewhere throws.
[[noreturn]] void fail(const std::string& what);

// The schedule: the order of the threads between two barriers, and the order of the blocks.
void set_schedule(const std::string& name, uint64_t seed);
void set_block_order(const std::string& name, uint64_t seed);

struct Launch {
  std::string kernel;
  int64_t blocks = 0;
  After after = After::the_end;
};
// begin_call() marks the beginning of a call of an op. before_launches() throws if that call has launched already.
void begin_call();
void before_launches(const char* what);
// Fills scratch memory with what an earlier call may have left there: bits that are all 0 in one call, 1 in the next.
void fill_scratch(void* memory, size_t bytes);

std::vector<Launch> launches();
void forget_launches();

struct Device {
  int multiprocessors = 4, major = 9, minor = 0;
  int shared = 227 * 1024;  // bytes that a block may use
  bool clusters = true;     // whether it supports clusters of blocks
  std::vector<int> groups;  // the SMs of each group; a cluster lies in one group; empty: one of all SMs

  // Returns how many clusters of `size` blocks run at once, with one block per SM.
  int active_clusters(int size) const {
    if (!clusters) return 0;
    if (groups.empty()) return size == 2 && multiprocessors < 2 ? 1 : multiprocessors / size;  // a lone SM holds two
    int fit = 0;
    for (int sms : groups) fit += sms / size;
    return fit;
  }
};
extern Device device;

}  // namespace cuda_on_cpu
