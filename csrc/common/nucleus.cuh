// SPDX-License-Identifier: Apache-2.0
// Exact top-k and top-p cutoffs of one row by one block, without sorting the row. Chunk maxima (from the pass that read
// the row) give a bound that the cutoff cannot lie below; the few logits above it are gathered in shared memory and sorted.
// Where there are too many, a histogram narrows the bracket first. Masses are fixed-point integers: no order changes them.
#pragma once

#include "block.cuh"
#include "filters.h"

namespace specdec {

constexpr int kFew = 2048;
constexpr int kBins = 1024;

class Nucleus {
 public:
  // What is kept: how much logits >= cutoff weigh, relative to the maximum, and how many they are.
  struct Kept {
    float cutoff;
    unsigned long long mass;  // in units of kUnit
    unsigned count;
  };
  static constexpr double kUnit = 0x1p-39;  // 2^24 entries of weight one fit in 64 bits

  SPECDEC_DEVICE Nucleus(const Row& row, const float* chunk_max, float max, float scale)
      : row_(row), chunk_max_(chunk_max), chunks_(int((row.V + kChunk - 1) / kChunk)), max_(max), rate_(scale * kLog2E) {}

  // The common cutoff of min-p, then top-k, then top-p, and the mass it keeps; `total` is the sum over the whole row.
  SPECDEC_DEVICE Kept keep(const Filters& filters, double total) {
    Kept kept{filters.min_p_cutoff(max_), 0, 0};
    bool known = false;  // kept.mass is that of kept.cutoff
#pragma unroll 1
    for (int stage = 0; stage < 4; ++stage) {
      float lo = kept.cutoff;
      Goal goal;
      if (stage == 0) {
        if (!filters.top_k_on(row_.V)) continue;
        lo = fmaxf(lo, top_k_bound(filters.top_k));
        goal.count = double(filters.top_k);
      } else if (stage == 2) {
        if (!(filters.top_p < 1)) continue;
        if (known) total = kept.mass * kUnit;
        lo = fmaxf(lo, filters.top_p_bound(max_, total, row_.V));
        goal.mass = filters.top_p * total / kUnit;
      } else {
        if (known || (stage == 1 && !(filters.min_p > 0 && filters.top_p < 1))) continue;
        goal.count = HUGE_VAL;  // never reached: the mass of all that is kept so far
      }
      kept = crossing(lo, goal);
      if (stage % 2 == 1) kept.cutoff = lo;  // only weighed
      known = true;
    }
    return kept;
  }

 private:
  // What must be kept at least.
  struct Goal {
    double count = 0, mass = 0;
    SPECDEC_DEVICE bool reached(const Kept& k) const { return double(k.count) >= count && double(k.mass) >= mass; }
  };

  // -0 and +0 are one logit: no entry has the key of -0.
  static constexpr uint32_t kMinusZero = 0x7fffffffu;
  SPECDEC_DEVICE static uint32_t key(float z) { return ordered(z + 0.0f); }

  SPECDEC_DEVICE unsigned long long mass(float z) const { return (unsigned long long)(fast_exp2((z - max_) * rate_) * float(1 / kUnit)); }

  // The largest z* >= lo with which the goal is reached; the smallest logit >= lo if it never is.
  SPECDEC_DEVICE Kept crossing(float lo, const Goal& goal) {
    uint32_t from = key(lo), to = key(max_);
    Kept above{max_, 0, 0};  // what lies over the bracket [from, to]
    unsigned inside = 0;     // how many lie in it, once a histogram has told
    // The first histogram is linear in z, which suits most rows; the next ones resolve ten bits of the key, whatever the row.
    for (bool linear = true;; linear = false) {
      if (inside <= kFew) {
        if (!(gathered_from_ <= from_ordered(from))) gather(from_ordered(from), from_ordered(to));
        if (gathered_from_ <= from_ordered(from)) break;
      } else if (from == to) {  // ties, more than can be gathered: one stands for all
        const float tied = from_ordered(from);
        if (threadIdx.x == 0) shared().few[0] = tied;
        __syncthreads();
        above.mass += mass(tied) * (inside - 1), above.count += inside - 1;
        count_ = 1;
        gathered_from_ = tied;
        break;
      }
      inside = narrow(from, to, linear, above, goal);
    }
    const Kept kept = among_sorted(from_ordered(from), above, goal);
    if (inside > 0) gathered_from_ = NAN;  // what lies above the bracket is not among the few
    return kept;
  }

  // One read of the chunks that reach lo: the logits in [lo, hi], sorted; gathered_from_ = NaN if they are too many.
  SPECDEC_DEVICE void gather(float lo, float hi) {
    Shared& s = shared();
    if (threadIdx.x == 0) s.count = 0;
    __syncthreads();
    const int lane = threadIdx.x % kLanes;
    for (int c = threadIdx.x / kLanes; c < chunks_; c += kWarps) {
      if (!(__ldcg(chunk_max_ + c) >= lo)) continue;
      int so_far = 0;
      if (lane == 0) so_far = atomicAdd(&s.count, 0);
      if (__shfl_sync(kFullWarp, so_far, 0) > kFew) break;  // too many already
      float z[kChunk / kLanes];
      load_groups<kChunk / kLanes / kGroup>(row_, c, 0, -HUGE_VALF, z);
#pragma unroll
      for (int r = 0; r < kChunk / kLanes; ++r) {
        const bool hit = z[r] >= lo && z[r] <= hi;
        const unsigned hits = __ballot_sync(kFullWarp, hit);
        if (!hits) continue;
        int at = 0;
        if (lane == 0) at = atomicAdd(&s.count, __popc(hits));
        at = __shfl_sync(kFullWarp, at, 0) + __popc(hits & ((1u << lane) - 1));
        if (hit && at < kFew) s.few[at] = z[r];
      }
    }
    __syncthreads();
    const int count = s.count;
    count_ = count <= kFew ? count : 0;
    gathered_from_ = count <= kFew ? lo : NAN;
    if (count <= kFew) sort_few();
  }

  // Bitonic sort of few_[0 .. count_), largest first.
  SPECDEC_DEVICE void sort_few() {
    Shared& s = shared();
    int n = 2;
    while (n < count_) n *= 2;
    for (int i = count_ + int(threadIdx.x); i < n; i += kThreads) s.few[i] = -HUGE_VALF;
    for (int size = 2; size <= n; size *= 2) {
      for (int step = size / 2; step > 0; step /= 2) {
        __syncthreads();
        for (int i = threadIdx.x; i < n / 2; i += kThreads) {
          const int a = 2 * i - i % step, b = a + step;
          const float x = s.few[a], y = s.few[b];
          if ((x < y) == !(a & size)) s.few[a] = y, s.few[b] = x;
        }
      }
    }
    __syncthreads();
  }

  // The crossing among the sorted few that are >= lo; `above` counts what lies over them.
  SPECDEC_DEVICE Kept among_sorted(float lo, const Kept& above, const Goal& goal) {
    const Shared& s = shared();
    const int run = (count_ + kThreads - 1) / kThreads, begin = int(threadIdx.x) * run;
    unsigned long long own = 0;
    for (int i = begin; i < begin + run && i < count_; ++i) own += mass(s.few[i]);
    Kept running{0, above.mass + block_scan(own).before, 0};
    int first = INT32_MAX, last = -1;
    for (int i = begin; i < begin + run && i < count_ && first == INT32_MAX; ++i) {
      if (!(s.few[i] >= lo)) break;
      last = i;
      running.mass += mass(s.few[i]);
      running.count = above.count + i + 1;
      if (goal.reached(running)) first = i;
    }
    int at = block_min(first);
    if (at == INT32_MAX) at = block_max(last);
    if (at < 0) return {lo, above.mass, above.count};
    const float cutoff = s.few[at];
    const auto kept = [&](int i) { return s.few[i] >= cutoff; };
    return {cutoff, above.mass + block_sum<unsigned long long>(count_, [&](int i) { return kept(i) ? mass(s.few[i]) : 0; }),
            above.count + block_sum<unsigned>(count_, [&](int i) { return unsigned(kept(i)); })};
  }

  // One read: counts and masses of [from, to] in kBins bins. The bracket becomes the bin of the crossing, what lies above
  // it is added to `above`; returns how many lie in it.
  SPECDEC_DEVICE unsigned narrow(uint32_t& from, uint32_t& to, bool linear, Kept& above, const Goal& goal) {
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
    for (int c = threadIdx.x / kLanes; c < chunks_; c += kWarps) {
      if (!(__ldcg(chunk_max_ + c) >= lo)) continue;
#pragma unroll 1
      for (int j = 0; j < kChunk / kLanes / kGroup; ++j) {
        float z[kGroup];
        load_groups<1>(row_, c, j, -HUGE_VALF, z);
#pragma unroll
        for (int e = 0; e < kGroup; ++e) {
          if (!(z[e] >= lo && z[e] <= hi)) continue;
          const int bin = bin_of(key(z[e]));
          atomicAdd(&s.bin_count[bin], 1u);
          atomicAdd(&s.bin_mass[bin], mass(z[e]));
        }
      }
    }
    __syncthreads();
    // The highest bin with which there is enough, else the lowest that holds anything: thread t looks at a run of bins from the top.
    constexpr int kRun = kBins / kThreads;
    const int top = kBins - 1 - int(threadIdx.x) * kRun;
    Kept own{0, 0, 0};
    for (int r = 0; r < kRun; ++r) own.mass += s.bin_mass[top - r], own.count += s.bin_count[top - r];
    Kept running{0, above.mass + block_scan(own.mass).before, above.count + block_scan(own.count).before};
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
    above.mass += block_sum<unsigned long long>(kBins, [&](int i) { return i > chosen ? s.bin_mass[i] : 0; });
    above.count += block_sum<unsigned>(kBins, [&](int i) { return i > chosen ? s.bin_count[i] : 0u; });
    const unsigned inside = s.bin_count[chosen];
    __syncthreads();
    // The first and the last key of the chosen bin, by bisection: bin_of ascends with the key.
    const uint32_t first = first_key(from, to, chosen, bin_of);
    to = first_key(first, to, chosen + 1, bin_of) - 1;
    from = first == kMinusZero ? first + 1 : first;
    if (to == kMinusZero) --to;
    return inside;
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

  // At least k logits reach the k-th largest of the chunk maxima, and the k-th largest of any two chunks.
  SPECDEC_DEVICE float top_k_bound(int64_t k) {
    Shared& s = shared();
    const bool maxima = k <= chunks_;
    const int64_t available = maxima ? chunks_ : row_.V;
    count_ = int(available < kFew ? available : kFew);
    gathered_from_ = NAN;
    if (k > count_) return -FLT_MAX;
    for (int i = threadIdx.x; i < count_; i += kThreads) s.few[i] = maxima ? __ldcg(chunk_max_ + i) : load_scalar(row_, i);
    sort_few();
    const float bound = s.few[k - 1];
    __syncthreads();
    return fmaxf(bound, -FLT_MAX);
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
  float max_, rate_;
  int count_ = 0;             // of the sorted few
  float gathered_from_ = NAN;  // they are all logits from here up; NaN if they are not
};

}  // namespace specdec
