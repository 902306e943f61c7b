// SPDX-License-Identifier: Apache-2.0
// Exact top-k and top-p cutoffs of one row by one block, without sorting the row, and as a rule in one more read of it.
// The pass before left chunk maxima, which bound the cutoff from below, and every 32nd logit, which tell about where it
// lies: the logits around there are gathered in shared memory and sorted, what lies above them is summed. A wrong guess
// costs more reads (a histogram finds the place), never exactness. Masses are fixed-point integers: no order changes
// them.
#pragma once

#include "thread_block.cuh"
#include "../core/filters.h"

namespace specdec {

constexpr int kFew = 8192;
constexpr int kSample = 4096;
constexpr int kBins = 1024;

class Nucleus {
 public:
  // How much the logits >= cutoff weigh, relative to the maximum and in units of kUnit, and how many they are.
  struct Kept {
    float cutoff = 0;
    unsigned long long mass = 0;
    unsigned count = 0;
  };
  static constexpr double kUnit = 0x1p-39;  // 2^24 entries of weight one fit in 64 bits

  // chunk_max [chunks] and samples [chunks, 32] as chunk_stats() left them
  SPECDEC_DEVICE Nucleus(const Row& row, const float* chunk_max, const float* samples, float max, float scale)
      : row_(row),
        chunk_max_(chunk_max),
        samples_(samples),
        chunks_(int((row.V + kChunk - 1) / kChunk)),
        max_(max),
        twice_rate_(2 * scale * kLog2E) {}

  // The common cutoff of min-p, then top-k, then top-p; `total` is the sum over the whole row.
  SPECDEC_DEVICE Kept emit(const Filters& filters, double total) {
    Kept kept;
    kept.cutoff = filters.min_p_cutoff(max_);
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
        const double left = known ? kept.mass * kUnit : total;
        lo = fmaxf(lo, filters.top_p_bound(max_, left, row_.V));
        goal.mass = filters.top_p * left / kUnit;
        goal.rest = total / kUnit - goal.mass;
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

  // The largest z* >= lo with which the goal is reached; the smallest logit >= lo if it never is.
  SPECDEC_DEVICE Kept crossing(float lo, const Goal& goal) {
    uint32_t from = key(lo), to = key(max_);  // it lies in here
    uint32_t a = from, b = to;                // and is looked for in here
    bool linear = true;
    Kept kept;
    bool reached = false;
    if (!(covered_from_ <= lo)) aim(goal, a, b);
#pragma unroll 1
    for (;;) {
      unsigned inside = 0;
      if (!(covered_from_ <= lo)) inside = gather(a, b);
      if (goal.reached(above_)) {
        from = b + 1;
      } else if (inside <= kFew) {
        kept = among_sorted(from_ordered(a), goal, reached);
        if (reached || a == from) return kept;
        to = before(a);
      } else {
        to = b;
      }
      // The first histogram is linear in z, which suits most rows; the next ones resolve ten bits of the key, whatever
      // the row.
      do {
        inside = narrow(from, to, linear, goal);
        linear = false;
      } while (inside > kFew && from < to);
      if (inside > kFew) {  // ties
        kept.cutoff = from_ordered(from);
        kept.mass = above_.mass + mass(kept.cutoff) * inside;
        kept.count = above_.count + inside;
        covered_from_ = NAN;
        return kept;
      }
      a = from, b = to;
    }
  }

  // Narrows [a, b] to about as many logits as can be gathered around the place where the sample reaches the goal.
  SPECDEC_DEVICE void aim(const Goal& goal, uint32_t& a, uint32_t& b) {
    if (row_.V <= kFew) return;
    Shared& s = shared();
    const int all = chunks_ * kLanes, n = all < kSample ? all : kSample;
    const double each = double(chunks_) * kChunk / n;  // logits that one of the sample stands for
    const float lo = from_ordered(a);
    count_ = n;
    covered_from_ = NAN;
    for (int i = threadIdx.x; i < n; i += kThreads) s.few[i] = __ldcg(samples_ + int64_t(i) * all / n);
    __syncthreads();
    const int reach = block_sum<int>(n, [&](int i) { return int(s.few[i] >= lo); });
    if (reach * each <= 0.5 * kFew) return;  // all of them can be gathered
    sort_few();
    int position = reach;
    if (goal.mass > 0) {
      const auto weight = [&](int i) { return double(mass(s.few[n - 1 - i])); };
      const double seen = block_sum<double>(n, weight);
      position = seen > 0 ? n - 1 - pick(n, goal.rest / (each * seen), weight).index : 0;
    } else if (goal.count / each < reach) {
      position = int(goal.count / each);
    }
    // 2 * width of the sample stand for so many logits, give or take three standard deviations, that they can be
    // gathered.
    const double root = 0.5 * (sqrt(9 + 4 * kFew / each) - 3);
    const int width = int(0.5 * root * root);
    const int below = position + width, over = position - width;
    if (below < reach) a = key(s.few[below]);
    if (over > 0 && below > 2 * width) b = key(s.few[over]);
    if (a < key(lo)) a = key(lo);
    __syncthreads();
  }

  // One read of the chunks that reach a: the logits in [a, b], sorted if they are few, and how many they are; above_
  // sums up those over b.
  SPECDEC_DEVICE unsigned gather(uint32_t a, uint32_t b) {
    Shared& s = shared();
    const float lo = from_ordered(a), hi = from_ordered(b);
    if (threadIdx.x == 0) s.count = 0;
    __syncthreads();
    const int lane = threadIdx.x % kLanes;
    Kept own;
    for (int c = threadIdx.x / kLanes; c < chunks_; c += kWarps) {
      if (!(__ldcg(chunk_max_ + c) >= lo)) continue;
#pragma unroll 1
      for (int j = 0; j < kChunk / kLanes / kGroup; j += 2) {
        float z[2 * kGroup];
        load_groups<2>(row_, c, j, -HUGE_VALF, z);
#pragma unroll
        for (int r = 0; r < 2 * kGroup; ++r) {
          if (z[r] > hi) own.mass += mass(z[r]), ++own.count;
          const bool hit = z[r] >= lo && z[r] <= hi;
          const unsigned hits = __ballot_sync(kFullWarp, hit);
          if (!hits) continue;
          int at = 0;
          if (lane == 0) at = atomicAdd(&s.count, __popc(hits));
          at = __shfl_sync(kFullWarp, at, 0) + __popc(hits & ((1u << lane) - 1));
          if (hit && at < kFew) s.few[at] = z[r];
        }
      }
    }
    above_.mass = block_scan(own.mass).total;
    above_.count = block_scan(own.count).total;
    const int count = s.count;
    covered_from_ = count <= kFew && !above_.count ? lo : NAN;
    count_ = count <= kFew ? count : 0;
    sort_few();
    return count;
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
          const int at = 2 * i - i % step, other = at + step;
          const float x = s.few[at], y = s.few[other];
          if ((x < y) == !(at & size)) s.few[at] = y, s.few[other] = x;
        }
      }
    }
    __syncthreads();
  }

  // The crossing among the sorted few that are >= lo, below what above_ sums up; the last of them if the goal is not
  // reached.
  SPECDEC_DEVICE Kept among_sorted(float lo, const Goal& goal, bool& reached) {
    const Shared& s = shared();
    const int run = (count_ + kThreads - 1) / kThreads, begin = int(threadIdx.x) * run;
    unsigned long long own = 0;
    for (int i = begin; i < begin + run && i < count_; ++i) own += mass(s.few[i]);
    Kept running;
    running.mass = above_.mass + block_scan(own).before;
    int first = INT32_MAX, last = -1;
    for (int i = begin; i < begin + run && i < count_ && first == INT32_MAX; ++i) {
      if (!(s.few[i] >= lo)) break;
      last = i;
      running.mass += mass(s.few[i]);
      running.count = above_.count + i + 1;
      if (goal.reached(running)) first = i;
    }
    int at = block_min(first);
    reached = at != INT32_MAX;
    if (!reached) at = block_max(last);
    Kept kept = above_;
    kept.cutoff = lo;
    if (at < 0) return kept;
    kept.cutoff = s.few[at];
    kept.mass +=
        block_sum<unsigned long long>(count_, [&](int i) { return s.few[i] >= kept.cutoff ? mass(s.few[i]) : 0; });
    kept.count += block_sum<unsigned>(count_, [&](int i) { return unsigned(s.few[i] >= kept.cutoff); });
    return kept;
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
      for (int j = 0; j < kChunk / kLanes / kGroup; ++j) {
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
    // The highest bin with which there is enough, else the lowest that holds anything: thread t looks at a run of bins
    // from the top.
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
    const unsigned inside = s.bin_count[chosen];
    __syncthreads();
    // The first and the last key of the chosen bin, by bisection: bin_of ascends with the key.
    const uint32_t first = first_key(from, to, chosen, bin_of);
    to = before(first_key(first, to, chosen + 1, bin_of));
    from = first == kMinusZero ? first + 1 : first;
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

  // At least k logits reach the k-th largest of the chunk maxima.
  SPECDEC_DEVICE float top_k_bound(int64_t k) {
    Shared& s = shared();
    count_ = chunks_ < kFew ? chunks_ : kFew;
    covered_from_ = NAN;
    if (k > count_) return -FLT_MAX;
    for (int i = threadIdx.x; i < count_; i += kThreads) s.few[i] = __ldcg(chunk_max_ + i);
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
  const float* samples_;
  int chunks_;
  float max_, twice_rate_;
  int count_ = 0;             // of the sorted few
  float covered_from_ = NAN;  // they are all logits from here up; NaN if they are not
  Kept above_;                // what lies over the few
};

}  // namespace specdec
