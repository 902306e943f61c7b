// SPDX-License-Identifier: Apache-2.0
// Where among a row's logits so many are kept, or so much of their mass: a histogram by one block, in which each read
// of the row narrows the bracket. Masses are fixed-point integers: no order changes them.
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
    Shared& s = shared();
    const float lo = from_ordered(from), hi = from_ordered(to);
    const float slope = float(kBins) * (1 - 0x1p-20f) / (hi - lo);
    linear = linear && slope > 0 && slope <= FLT_MAX;
    const uint32_t bottom = from;
    int shift = 0;
    while ((to - from) >> shift >= uint32_t(kBins)) ++shift;
    const auto bin_of = [=](uint32_t key) {
      return linear ? int(fminf((from_ordered(key) - lo) * slope, float(kBins - 1))) : int((key - bottom) >> shift);
    };
    for (int i = threadIdx.x; i < kBins; i += kThreads) s.bin_mass[i] = 0, s.bin_count[i] = 0;
    __syncthreads();
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
          if (z[e] > hi) {
            over.mass += mass(z[e]), ++over.count;
            continue;
          }
          const int bin = bin_of(key(z[e]));
          atomicAdd(&s.bin_count[bin], 1u);
          atomicAdd(&s.bin_mass[bin], mass(z[e]));
        }
      }
    }
    above_.mass = block_scan(over.mass).total;
    above_.count = block_scan(over.count).total;
    const int chosen = choose_bin(goal);
    const unsigned inside = s.bin_count[chosen];
    __syncthreads();
    // The first and the last key of the chosen bin, by bisection: bin_of ascends with the key.
    const uint32_t first = first_key(from, to, chosen, bin_of);
    to = before(first_key(first, to, chosen + 1, bin_of));
    from = first == kMinusZero ? first + 1 : first;
    return inside;
  }

  struct Shared {
    float few[kFew];
    unsigned long long bin_mass[kBins];
    unsigned bin_count[kBins];
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
  Kept above_;  // what lies over the few

 private:
  // The highest bin with which there is enough, else the lowest that holds anything: thread t looks at a run of bins
  // from the top. above_ then sums up what lies over it.
  SPECDEC_DEVICE int choose_bin(const Goal& goal) {
    const Shared& s = shared();
    constexpr int kRun = kBins / kThreads;
    const int top = kBins - 1 - int(threadIdx.x) * kRun;
    Kept own;
    for (int r = 0; r < kRun; ++r) own.mass += s.bin_mass[top - r], own.count += s.bin_count[top - r];
    Kept running;
    running.mass = above_.mass + block_scan(own.mass).before,
    running.count = above_.count + block_scan(own.count).before;
    int chosen = -1, lowest = INT32_MAX;
    for (int r = 0; r < kRun && chosen < 0; ++r) {
      if (!s.bin_count[top - r]) continue;
      lowest = top - r;
      running.mass += s.bin_mass[top - r], running.count += s.bin_count[top - r];
      if (goal.reached(running)) chosen = top - r;
    }
    chosen = block_max(chosen);
    lowest = block_min(lowest);
    if (chosen < 0) chosen = lowest == INT32_MAX ? 0 : lowest;
    above_.mass += block_sum<unsigned long long>(kBins, [&](int i) { return i > chosen ? s.bin_mass[i] : 0; });
    above_.count += block_sum<unsigned>(kBins, [&](int i) { return i > chosen ? s.bin_count[i] : 0u; });
    return chosen;
  }

  // The least key in [from, to] whose bin is at least `bin`; to + 1 if there is none.
  template <class BinOf>
  SPECDEC_DEVICE static uint32_t first_key(uint32_t from, uint32_t to, int bin, const BinOf& bin_of) {
    while (from <= to) {
      const uint32_t middle = from + (to - from) / 2;
      if (bin_of(middle) < bin)
        from = middle + 1;
      else if (middle == from)
        return from;
      else
        to = middle;
    }
    return from;
  }
};

}  // namespace specdec
