// SPDX-License-Identifier: Apache-2.0
// One block of a launch: its threads as fibers, where each of them waits, and which one runs next.
#pragma once

#include <memory>

#include "fiber.h"
#include "grid.h"
#include "order.h"

namespace cuda_on_cpu {

enum class State : uint8_t { ready, waiting, exited };

struct Thread {
  Fiber fiber;
  State state = State::ready;
  bool waited = true;        // whether it has waited for the launch before
  const char* op = nullptr;  // where it waits
  Site site;
  // The calls that lead to where the thread is (checked flavour): a helper with a barrier that is called from two
  // branches counts as two places.
  static constexpr int kDepth = 64;
  uint64_t path[kDepth] = {};
  int depth = 0;
  uint64_t way() const { return path[depth < kDepth ? depth : kDepth - 1]; }
};

struct Warp {
  uint64_t values[2][32];  // two, since a lane may write its next value while others still read the last ones
  unsigned turn = 0;
  int arrived = 0, exited = 0, first = 0;
};

class Block {
 public:
  static constexpr int kMaxThreads = 1024;
  static constexpr size_t kStack = 64 * 1024 + 17 * 64;  // not a power of two, so that stacks use different cache sets

  Block();
  ~Block();

  // To run a block, call begin(), then resume() until it returns false. While it returns true, all threads wait for the
  // other blocks of the cluster.
  void begin(int64_t index, int threads, After after, void (*body)(void*), void* kernel);
  bool resume();
  void release();  // the cluster has met
  const uint64_t* meet_warp(const char* op, unsigned mask, uint64_t value, const Site& site);
  Votes meet_block(const char* op, bool vote, const Site& site);
  void meet_cluster(const char* op, const Site& site);
  [[noreturn]] void fail(const std::string& what);
  bool owns(const void* p) const { return size_t(static_cast<const char*>(p) - stacks_) < kStack * kMaxThreads; }
  Thread& running() { return threads_[here.thread.x]; }

  Order order;  // of threads
  bool failed = false;
  std::string error;
  int rank = 0, met = 0;  // the block's rank in its cluster; how often the cluster has met

 private:
  static void entry();
  int next();
  void leave();  // switches to the next thread
  void exit();
  void wait_at(const char* op, const Site& site);
  void check_same(int first, const char* op, const Site& site);
  std::string deadlock() const;

  char* stacks_;
  std::unique_ptr<Thread[]> threads_;
  Warp warps_[kMaxThreads / 32];
  Fiber scheduler_;
  Votes votes_[2];
  unsigned turn_ = 0;
  int64_t index_ = 0;
  int count_ = 0, arrived_ = 0, exited_ = 0, first_ = 0, cursor_ = 0;
  int cluster_arrived_ = 0, cluster_first_ = 0;
  void (*body_)(void*) = nullptr;
  void* kernel_ = nullptr;
};

// Returns a text such as "__syncthreads (sample.cu:66)".
std::string place(const char* op, const Site& site);

extern Block* block;  // of the launch that runs, or null

// Whether the caller is a kernel's thread: it is on the stack of one.
inline bool in_kernel() { return block && block->owns(__builtin_frame_address(0)); }

}  // namespace cuda_on_cpu
