// SPDX-License-Identifier: Apache-2.0
// Where among a row's logits so many are kept, or so much of their mass: histograms by one block, each of which narrows
// the bracket; of the row, or of those of its logits that lie in shared memory. Masses are fixed-point integers: no
// order changes them.
#pragma once

#include "../core/filters.h"
#include "thread_block.cuh"

namespace specdec {

constexpr int kFew = 8192;
constexpr int kBins = 1024;

class LogitHistogram {
 public:
  // How much the logits >= cutoff weigh, relative to the maximum and in units of kUnit, and how many they are.
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

  // What must be kept at least. `rest`: what then lies below, by which the place is guessed, since a sample may miss
  // the few logits that carry most of the mass.
  struct Goal {
    double count = 0, mass = 0, rest = 0;
    SPECDEC_DEVICE bool reached(const Kept& k) const { return double(k.count) >= count && double(k.mass) >= mass; }
  };

  // Keys are ordered as logits are. -0 and +0 are one logit: no entry has the key of -0.
  static constexpr uint32_t kMinusZero = 0x7fffffffu;
  SPECDEC_DEVICE static uint32_t key(float z) { return ordered(z + 0.0f); }
  SPECDEC_DEVICE static uint32_t before(uint32_t key) { return key - 1 == kMinusZero ? key - 2 : key - 1; }

  // scaled(), but that nothing beside max_ and the rate is kept in a register.
  SPECDEC_DEVICE unsigned long long mass(float z) const {
    return (unsigned long long)(fast_exp2(fmaf(-0.5f, max_, 0.5f * z) * twice_rate_) * float(1 / kUnit));
  }

  // One read: counts and masses of [from, to] in kBins bins. The bracket becomes the bin of the crossing; above_ sums
  // up what lies over it. Returns how many lie in it.
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
    // The first and the last key of the chosen bin, by bisection: bins ascend with the key.
    const uint32_t first = bin_of.first_key(from, to, chosen.bin);
    to = before(bin_of.first_key(first, to, chosen.bin + 1));
    from = first == kMinusZero ? first + 1 : first;
    return chosen.inside;
  }

  // Among count_ logits at hand, in any order, of which those from lo on count: the largest with which the goal is
  // reached, else the smallest, or lo where there is none. `above`: what lies over all of them.
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
    Kept above;  // what lies over the bin
    int bin;
    unsigned inside;
  };
  static constexpr int kSlots = kBins + kBins / kLanes;
  struct Shared {
    float few[kFew];
    unsigned low[kSlots], high[kSlots];  // words of a bin's mass: 64-bit sums in shared memory spin where many meet
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
  Kept above_;     // what lies over the bracket, or over the few
  int count_ = 0;  // of the few

 private:
  // The keys of a bracket in kBins bins or fewer: of as many keys each, or as wide in z.
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

  // Where a bin lies: runs of bins, as lanes take them, begin in different banks.
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

  // The highest bin with which there is enough, else the lowest that holds anything, else 0
  SPECDEC_DEVICE static Chosen choose(const Goal& goal, const Kept& above) {
    __syncthreads();
    if (threadIdx.x < kLanes) leave_choice(goal, above);
    __syncthreads();
    return shared().chosen.get();
  }

  // By one warp, of which each lane looks at a run of bins from the top; apart, since it has many callers
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
