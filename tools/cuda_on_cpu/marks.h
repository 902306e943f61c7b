// SPDX-License-Identifier: Apache-2.0
// What the check of races remembers of the accesses to each byte of memory.
#pragma once

#include <cstdint>
#include <vector>

namespace cuda_on_cpu {

// The thread that made an access to a byte, and when. Threads run one at a time, so a block's threads share one clock.
struct Mark {
  uint64_t block : 24 = 0, thread : 10 = 0, atomic : 1 = 0, time : 29 = 0;
};

// Accesses of one kind to a byte by one block: the last; before it, the last one by another thread of the same warp,
// and the last one by another warp. An access that races with an older one also races with one of these. There is one
// exception: the threads of all of these, at least two, have each made an atomic that the thread of another block saw,
// and that of the older one has not.
struct Marks {
  Mark last, of_warp, of_others;
};

// What is known of a byte. A mark is dropped when a later access that is ordered after it gets one: what races with the
// first then also races with the second.
struct Cell {
  Mark write;          // the last one
  Marks reads;         // by the block that read last
  uint32_t l1 = 0;     // the last block that loaded the byte through L1
  uint32_t older = 0;  // the place of its first Older; of no meaning if an earlier launch had that place
};

// Older marks of a byte, a list. The first one has the writes that the last one, an atomic, leaves unordered; of these
// `last` is the plain write before all atomics. Each of the others has the reads by one block.
struct Older {
  Marks marks;
  uint32_t next = 0;
};

class OlderMarks {
 public:
  void begin_launch() {
    first_ += uint32_t(made_.size()), unused_ = 0;
    made_.clear();
  }
  // The places are used up. Once they begin again, no cell may have one.
  bool full() const { return first_ >= (1u << 31); }
  void begin_again() { first_ = 1; }

  // Returns the place of the cell's first one in this launch, or 0.
  uint32_t of(const Cell& cell) const { return cell.older < first_ ? 0 : cell.older; }
  Older& operator[](uint32_t place) { return made_[place - first_]; }

  uint32_t add(const Marks& marks, uint32_t next) {
    uint32_t place = unused_;
    if (place)
      unused_ = (*this)[place].next;
    else
      made_.emplace_back(), place = first_ + uint32_t(made_.size()) - 1;
    (*this)[place] = {marks, next};
    return place;
  }

  // Returns the place of the next one in its list.
  uint32_t remove(uint32_t place) {
    const uint32_t next = (*this)[place].next;
    (*this)[place].next = unused_, unused_ = place;
    return next;
  }

 private:
  std::vector<Older> made_;          // in this launch
  uint32_t first_ = 1, unused_ = 0;  // places: of the first one made, and of the first that can be used again
};

}  // namespace cuda_on_cpu
