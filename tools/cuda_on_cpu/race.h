// SPDX-License-Identifier: Apache-2.0
// Finds data races: conflicting accesses that nothing orders. Within a block, barriers order all threads, and warp
// intrinsics order the lanes of the warp. Barriers of a cluster order its blocks. Other blocks of a launch are ordered
// only by this sequence: one block writes, calls __threadfence and makes an atomic; the other makes an atomic on the
// same address, and then reads past L1 (or calls __threadfence, and reads).
#pragma once

#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "grid.h"
#include "marks.h"

namespace cuda_on_cpu {

// What a thread's atomic makes visible to threads that see its result.
struct Release {
  unsigned block, thread, time, epoch;  // epoch: the time of the block's last barrier before it
  // The times of the thread's last fence, and of its block's last barrier and its warp's last intrinsic before that.
  unsigned fence, fence_epoch, fence_warp;
  std::shared_ptr<const std::vector<unsigned>> fences;  // each thread's last fence before the block's last barrier
  bool covers_write(const Mark& m) const;
  bool covers_read(const Mark& m) const { return (m.thread == thread && m.time <= time) || m.time < epoch; }
};

// The clock of a running block. The blocks of a cluster take turns, and each has its own.
struct BlockClock {
  struct Acquired {
    std::shared_ptr<const Release> release;
    unsigned thread, time;
  };
  using Known = std::map<unsigned, std::vector<Acquired>>;  // by the block that released

  static constexpr unsigned kThreads = 1024;
  unsigned block_ = 0;  // the running block's index
  unsigned time_ = 0, epoch_ = 0, warp_epoch_[kThreads / 32] = {};
  std::vector<unsigned> fence_ = std::vector<unsigned>(kThreads), fence_epoch_ = fence_, fence_warp_ = fence_;
  std::shared_ptr<const std::vector<unsigned>> fences_;
  bool fenced_ = false;  // since the last barrier
  Known known_;
};

class Races : private BlockClock {
 public:
  bool on = true;

  void begin_launch(const char* shared_begin, const char* shared_end, After after);
  void begin_block();
  void begin_cluster(int size);
  void add_dynamic(const char* begin, size_t bytes);  // of the next rank
  void enter(int rank);
  void leave(int rank, bool for_good);
  void cluster_met();
  void warp_met(int warp) { warp_epoch_[warp] = ++time_; }
  void block_met();
  void fence(unsigned thread);
  void note(const void* address, size_t bytes, Access access);

 private:
  Cell* cell(uintptr_t address);
  void check(const Mark& old, bool old_reads, uintptr_t address, Access access) {
    if (old.block >= oldest_ && !(old.atomic && access == Access::atomic))
      check_recent(old, old_reads, address, access);
  }
  void check(const Marks& old, bool old_reads, uintptr_t address, Access access) {
    for (const Mark& m : {old.last, old.of_warp, old.of_others}) check(m, old_reads, address, access);
  }
  void check_recent(const Mark& old, bool old_reads, uintptr_t address, Access access);
  void check_stale(const Cell& cell) const;
  bool ordered_within(const Mark& old, unsigned thread) const;
  const char* disorder_between(const Mark& old, bool old_reads, Access access) const;
  bool seen(const Marks& reads) const;
  void note_write(Cell& cell, const Mark& now, uintptr_t address, Access access);
  void note_read(Cell& cell, const Mark& now, Access access);
  bool knows(const Acquired& a, unsigned thread) const;
  void acquire_and_release(uintptr_t address);

  void check_dynamic(uintptr_t address, size_t bytes, Access access);

  static constexpr unsigned kPage = 1024;
  unsigned last_ = 0, launch_ = 1;  // the index of the last block that began, and of the launch's first block
  unsigned overlaps_ = 1;           // the index of the first block that may run at the same time as the launch
  unsigned oldest_ = 1;             // the index of the first block whose accesses the thread may race with
  struct Dynamic {
    uintptr_t begin;
    size_t bytes;
    bool left;  // its block has exited
  };
  std::vector<Dynamic> dynamic_;      // by rank
  std::vector<BlockClock> clocks_;    // by rank, of blocks that wait
  std::map<unsigned, unsigned> met_;  // block of the cluster -> its time when the cluster last met
  int rank_ = 0;
  uintptr_t shared_begin_ = 0, shared_end_ = 0;
  std::unordered_map<uintptr_t, std::vector<std::shared_ptr<const Release>>> released_;
  std::unordered_map<uintptr_t, std::unique_ptr<Cell[]>> pages_;
  OlderMarks older_;
  uintptr_t last_page_ = 0;
  Cell* last_cells_ = nullptr;
};

extern Races races;

}  // namespace cuda_on_cpu
