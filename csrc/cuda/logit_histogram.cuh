// SPDX-License-Identifier: Apache-2.0
// Finds the cutoff of a row: the largest logit such that all logits from it on reach a given count or mass. One block
// makes histograms of the row, or of those of its logits that lie in shared memory. Each histogram narrows the bracket
// around the cutoff. Masses are fixed-point integers, so their sums do not depend on the order.
#pragma once

#include "../core/filters.h"
#include "thread_block.cuh"

namespace specdec {

constexpr int kFew = 8192;   // logits that fit in shared memory
constexpr int kBins = 1024;  // of a histogram

class LogitHistogram {
 public:
  // The mass of the logits >= cutoff, relative to the weight of the maximum and in units of kUnit, and their count
  struct Kept {
    float cutoff = 0;
    unsigned long long mass = 0;
    unsigned count = 0;
  };
  static constexpr double kUnit = 0x1p-39;  // 2^24 entries of weight one fit in 64 bits

 protected:
  SPECDEC_DEVICE LogitHistogram(const Row& row, const float* chunk_max, float max, float scale)
      : row_(row),
        chunk_max_(chunk_max),
        chunks_(int(chunk_count(row.V))),
        max_(max),
        twice_rate_(2 * scale * kLog2E) {}

  // The least that must be kept; masses are in units of kUnit. `rest` is the mass that then lies below the cutoff. The
  // guess of the cutoff is made from `rest`, since a sample may miss the few logits that carry most of the mass.
  struct Goal {
    double count = 0, mass = 0, rest = 0;
    SPECDEC_DEVICE bool reached(const Kept& k) const { return double(k.count) >= count && double(k.mass) >= mass; }
  };

  // The key of a logit, an integer; keys sort as logits do. -0 and +0 are the same logit, so no entry has the key of
  // -0. before() is the next smaller key.
  static constexpr uint32_t kMinusZero = 0x7fffffffu;
  SPECDEC_DEVICE static uint32_t key(float z) { return ordered(z + 0.0f); }
  SPECDEC_DEVICE static uint32_t before(uint32_t key) { return key - 1 == kMinusZero ? key - 2 : key - 1; }

  // The mass of a logit in units of kUnit. Like scaled(), but only max_ and twice_rate_ are kept in registers.
  SPECDEC_DEVICE unsigned long long mass(float z) const {
    return (unsigned long long)(fast_exp2(fmaf(-0.5f, max_, 0.5f * z) * twice_rate_) * float(1 / kUnit));
  }

  // Reads the row once, and makes a histogram of kBins bins, with counts and masses, of the keys in [from, to]. Then
  // [from, to] becomes the range of keys of the bin that choose() returns, and above_ the count and mass above it.
  // Returns the count in that bin.
  SPECDEC_DEVICE unsigned narrow(uint32_t& from, uint32_t& to, bool linear, const Goal& goal) {
    const Bins bin_of(from, to, linear);
    const float lo = from_ordered(from), hi = from_ordered(to);
    clear_bins();
    Kept over;
    for (int c = threadIdx.x / kLanes; c < chunks_; c += kWarps) {
      if (!(__ldcg(chunk_max_ + c) >= lo)) continue;
#pragma unroll 1
      for (int j = 0; j < kGroups; ++j) {
        float z[kGroup];
        load_groups<1>(row_, c, j, -HUGE_VALF, z);
#pragma unroll
        for (int e = 0; e < kGroup; ++e) {
          if (!(z[e] >= lo)) continue;
          if (z[e] > hi)
            over.mass += mass(z[e]), ++over.count;
          else
            put(bin_of(key(z[e])), mass(z[e]));
        }
      }
    }
    above_.mass = block_scan(over.mass).total;
    above_.count = block_scan(over.count).total;
    const Chosen chosen = choose(goal, above_);
    above_ = chosen.above;
    // The first and last key of the chosen bin, by bisection: a larger key never has a lower bin.
    const uint32_t first = bin_of.first_key(from, to, chosen.bin);
    to = before(bin_of.first_key(first, to, chosen.bin + 1));
    from = first == kMinusZero ? first + 1 : first;
    return chosen.inside;
  }

  // Searches the unsorted logits few[0 .. count_) that are >= lo. Returns the largest at which the goal is reached; if
  // there is none, the smallest; and lo if no logit is >= lo. `above`: count and mass above all of few[].
  SPECDEC_DEVICE Kept among_few(float lo, const Goal& goal, Kept above) {
    const Shared& s = shared();
    uint32_t from = key(lo), to = key(max_);
    unsigned inside = 0;
#pragma unroll 1
    for (;;) {
      const Bins bin_of(from, to, false);
      clear_bins();
      for (int i = threadIdx.x; i < count_; i += kThreads) {
        const uint32_t k = key(s.few[i]);
        if (k >= from && k <= to) put(bin_of(k), mass(s.few[i]));
      }
      const Chosen chosen = choose(goal, above);
      above = chosen.above, inside = chosen.inside;
      from += uint32_t(chosen.bin) << bin_of.shift;
      if (!bin_of.shift || !inside) break;
      const uint32_t last = from + ((1u << bin_of.shift) - 1);
      to = last < to ? last : to;
    }
    if (!inside) return {lo, above.mass, above.count};
    const float cutoff = from_ordered(from);
    return {cutoff, above.mass + mass(cutoff) * inside, above.count + inside};
  }

  struct Chosen {
    Kept above;  // count and mass above the bin
    int bin;
    unsigned inside;
  };
  static constexpr int kSlots = kBins + kBins / kLanes;
  struct Shared {
    float few[kFew];                     // logits of the row, unsorted
    unsigned low[kSlots], high[kSlots];  // halves of a bin's mass: 64-bit shared atomics are slow under contention
    unsigned count_of_bin[kSlots];
    Uninitialised<Chosen> chosen;
    int count;
  };
  SPECDEC_DEVICE static Shared& shared() {
    __shared__ Shared s;
    return s;
  }

  const Row row_;
  const float* chunk_max_;
  int chunks_;
  float max_, twice_rate_;
  Kept above_;     // count and mass above the bracket, or above few[]
  int count_ = 0;  // how many logits few[] holds

 private:
  // Splits the keys of a bracket into at most kBins bins. All bins have the same number of keys or, if `linear`, the
  // same width in z.
  struct Bins {
    uint32_t bottom;
    int shift = 0;
    float lo, slope;
    bool linear;

    SPECDEC_DEVICE Bins(uint32_t from, uint32_t to, bool wanted_linear) : bottom(from), lo(from_ordered(from)) {
      slope = float(kBins) * (1 - 0x1p-20f) / (from_ordered(to) - lo);
      linear = wanted_linear && slope > 0 && slope <= FLT_MAX;
      while ((to - from) >> shift >= uint32_t(kBins)) ++shift;
    }
    SPECDEC_DEVICE int operator()(uint32_t key) const {
      return linear ? int(fminf((from_ordered(key) - lo) * slope, float(kBins - 1))) : int((key - bottom) >> shift);
    }
    // The least key in [from, to] whose bin is at least `bin`; to + 1 if there is none.
    SPECDEC_DEVICE uint32_t first_key(uint32_t from, uint32_t to, int bin) const {
      while (from <= to) {
        const uint32_t middle = from + (to - from) / 2;
        if ((*this)(middle) < bin)
          from = middle + 1;
        else if (middle == from)
          return from;
        else
          to = middle;
      }
      return from;
    }
  };

  // The index of a bin in shared memory, padded so that the lanes' runs of bins begin in different banks.
  SPECDEC_DEVICE static int slot(int bin) { return bin + bin / kLanes; }

  SPECDEC_DEVICE static void clear_bins() {
    Shared& s = shared();
    for (int i = threadIdx.x; i < kSlots; i += kThreads) s.low[i] = s.high[i] = s.count_of_bin[i] = 0;
    __syncthreads();
  }

  SPECDEC_DEVICE static void put(int bin, unsigned long long mass) {
    Shared& s = shared();
    const int at = slot(bin);
    atomicAdd(&s.count_of_bin[at], 1u);
    const unsigned low = unsigned(mass), carry = atomicAdd(&s.low[at], low) > ~low;
    if (const unsigned high = unsigned(mass >> 32) + carry) atomicAdd(&s.high[at], high);
  }

  // The highest bin at which the goal is reached, else the lowest bin that is not empty, else bin 0
  SPECDEC_DEVICE static Chosen choose(const Goal& goal, const Kept& above) {
    __syncthreads();
    if (threadIdx.x < kLanes) leave_choice(goal, above);
    __syncthreads();
    return shared().chosen.get();
  }

  // Called by one warp: leaves the result of choose() in shared memory. Each lane scans a run of bins from the top
  // down. Not inlined, since it has many callers.
  static SPECDEC_APART void leave_choice(Goal goal, Kept above) {
    Shared& s = shared();
    constexpr int kRun = kBins / kLanes;
    const int top = kBins - 1 - int(threadIdx.x) * kRun;
    const auto mass_in = [&](int at) { return (unsigned long long)(s.high[at]) << 32 | s.low[at]; };
    Kept own;
#pragma unroll 4
    for (int r = 0; r < kRun; ++r) own.mass += mass_in(slot(top - r)), own.count += s.count_of_bin[slot(top - r)];
    Kept running;
    running.mass = above.mass + warp_before(warp_upto(own.mass));
    running.count = above.count + warp_before(warp_upto(own.count));
    Chosen found{running, 0, 0};
    bool reached = false;
#pragma unroll 1
    for (int r = 0; r < kRun && !reached; ++r) {
      const int at = slot(top - r);
      if (!s.count_of_bin[at]) continue;
      found = {running, top - r, s.count_of_bin[at]};
      running.mass += mass_in(at), running.count += found.inside;
      reached = goal.reached(running);
    }
    const unsigned enough = __ballot_sync(kFullWarp, reached), some = __ballot_sync(kFullWarp, found.inside > 0);
    const int lane = enough ? __ffs(int(enough)) - 1 : some ? kLanes - 1 - __clz(int(some)) : 0;
    if (int(threadIdx.x) == lane) s.chosen.get() = found;
  }
};

}  // namespace specdec
