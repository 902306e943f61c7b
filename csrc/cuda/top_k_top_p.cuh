// SPDX-License-Identifier: Apache-2.0
// Exact top-k and top-p cutoffs of one row by one block, without sorting the row, and usually with one more read of it.
// The pass before left two things in memory: chunk maxima, and one entry of each lane of each chunk. For top-k with a k
// that is not too large, this entry is the lane's largest (by_largest()). The k-th largest of these entries is a lower
// bound of the cutoff, and the few logits that reach it are gathered in shared memory. Otherwise it is any entry of the
// lane: one in 32 logits of the row, a sample that shows roughly where the cutoff lies. The logits around there are
// gathered, and those above are summed. Histograms over the digits of the logits' keys then find the cutoff. A wrong
// guess costs more reads of the row, never exactness. Masses are fixed-point integers, so their sums do not depend on
// the order.
#pragma once

#include "chunk_reduce.cuh"

namespace specdec {

constexpr int kSample = 4096;  // most entries of the sample

// The cutoff of top-n-sigma. Each thread adds its entries in the order of their ids, then the threads' sums are added
// in the order of the threads. Not inlined, so rows without this filter need no more registers.
SPECDEC_APART float top_n_sigma_cutoff(Row row, float max, float n) {
  Spread own;
  for (int c = threadIdx.x / kLanes; c < int(chunk_count(row.V)); c += kWarps) {
#pragma unroll 1
    for (int j = 0; j < kGroups; ++j) {
      float z[kGroup];
      load_groups<1>(row, c, j, -HUGE_VALF, z);
#pragma unroll
      for (int e = 0; e < kGroup; ++e) own.add(z[e], max);
    }
  }
  Filters filters;
  filters.top_n_sigma = n;
  return filters.top_n_sigma_cutoff(
      max, {block_scan(own.sum).total, block_scan(own.squares).total, block_scan(own.count).total});
}

// Finds the common cutoff of all filters of a row.
class Nucleus : public LogitHistogram {
 public:
  // chunk_max [chunks] and lanes [chunks, 32] as chunk_stats() left them
  SPECDEC_DEVICE Nucleus(const Row& row, const float* chunk_max, const float* lanes, float max, float scale)
      : LogitHistogram(row, chunk_max, max, scale), lanes_(lanes) {}

  // Returns the cutoff of all filters together, and the mass and count that it keeps. Top-n-sigma and min-p come first,
  // then top-k (stage 0), then top-p (stage 2). Stages 1 and 3 find the mass that is kept so far, if it is needed and
  // not known. `total` is the sum of the weights of the whole row.
  SPECDEC_DEVICE Kept emit(const Filters& filters, double total) {
    largest_ = by_largest(filters, row_.V);
    Kept kept;
    kept.cutoff = filters.min_p_cutoff(max_);
    if (filters.top_n_sigma > 0) kept.cutoff = fmaxf(kept.cutoff, top_n_sigma_cutoff(row_, max_, filters.top_n_sigma));
    bool known = false;  // whether kept.mass is that of kept.cutoff
#pragma unroll 1
    for (int stage = 0; stage < 4; ++stage) {
      float lo = kept.cutoff;
      Goal goal;
      if (stage == 0) {
        if (!filters.top_k_on(row_.V)) continue;
        lo = fmaxf(lo, top_k_bound(filters.top_k));
        if (largest_) gather_lanes(lo);
        goal.count = double(filters.top_k);
      } else if (stage == 2) {
        if (!(filters.top_p < 1)) continue;
        const double left = known ? kept.mass * kUnit : total;
        lo = fmaxf(lo, filters.top_p_bound(max_, left, row_.V));
        goal.mass = filters.top_p * left / kUnit;
        goal.rest = total / kUnit - goal.mass;
      } else {
        if (known || (stage == 1 && !(filters.by_value() && filters.top_p < 1))) continue;
        goal.count = HUGE_VAL;  // never reached, so all that is kept so far is added up
      }
      kept = crossing(lo, goal);
      if (stage % 2 == 1) kept.cutoff = lo;  // this stage only finds the mass
      known = true;
    }
    return kept;
  }

 private:
  // The largest logit >= lo at which the goal is reached, with count and mass from it on; the smallest logit >= lo if
  // the goal is never reached
  SPECDEC_DEVICE Kept crossing(float lo, const Goal& goal) {
    uint32_t from = key(lo), to = key(max_);  // the cutoff lies in [from, to]
    uint32_t a = from, b = to;                // and is searched in [a, b]
    bool linear = true;
    Kept kept;
    if (!(covered_from_ <= lo)) aim(goal, a, b);
#pragma unroll 1
    for (;;) {
      unsigned inside = 0;
      if (!(covered_from_ <= lo)) inside = gather(a, b);
      if (goal.reached(above_)) {
        from = b + 1;
      } else if (inside <= kFew) {
        kept = among_few(from_ordered(a), goal, above_);
        if (goal.reached(kept) || a == from) return kept;
        to = before(a);
      } else {
        to = b;
      }
      // The first histogram is linear in z, which suits most rows. The next ones resolve ten bits of the key, whatever
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

  // Narrows [a, b] around the place where the sample reaches the goal, to about as many logits as can be gathered.
  SPECDEC_DEVICE void aim(const Goal& goal, uint32_t& a, uint32_t& b) {
    if (row_.V <= kFew || largest_) return;
    Shared& s = shared();
    const int all = chunks_ * kLanes, n = all < kSample ? all : kSample;
    const double each = double(chunks_) * kChunk / n;  // logits per entry of the sample
    const float lo = from_ordered(a);
    count_ = n;
    covered_from_ = NAN;
    for (int i = threadIdx.x; i < n; i += kThreads) s.few[i] = __ldcg(lanes_ + int64_t(i) * all / n);
    __syncthreads();
    const int reach = block_sum<int>(n, [&](int i) { return int(s.few[i] >= lo); });
    if (reach * each <= 0.5 * kFew) return;  // all of them can be gathered
    int position = reach;
    if (goal.mass > 0) {
      const double seen = double(block_sum<unsigned long long>(n, [&](int i) { return mass(s.few[i]); }));
      position = int(among_few(lo, {0, seen - goal.rest / each}, {}).count) - 1;
    } else if (goal.count / each < reach) {
      position = int(goal.count / each);
    }
    // 2 * width entries of the sample stand for as many logits as can be gathered, minus three standard deviations.
    const double root = 0.5 * (sqrt(9 + 4 * kFew / each) - 3);
    const int width = int(0.5 * root * root);
    const int below = position + width, over = position - width;
    const auto at = [&](int rank) { return key(among_few(lo, {double(rank + 1)}, {}).cutoff); };
    if (below < reach) a = at(below);
    if (over > 0 && below > 2 * width) b = at(over);
  }

  // Gathers the logits with keys in [a, b] if they are at most kFew, and returns how many there are. Sets above_ to the
  // count and mass of the logits above b.
  SPECDEC_DEVICE unsigned gather(uint32_t a, uint32_t b) {
    Shared& s = shared();
    const float lo = from_ordered(a), hi = from_ordered(b);
    start_count();
    const int lane = threadIdx.x % kLanes;
    Kept own;
    for (int c = threadIdx.x / kLanes; c < chunks_; c += kWarps) {
      if (!(__ldcg(chunk_max_ + c) >= lo)) continue;
#pragma unroll 1
      for (int j = 0; j < kGroups; j += 2) {
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
    return count;
  }

  // A lower bound of the k-th largest logit: the k-th largest of the chunk maxima or, much closer, of the lanes' maxima
  SPECDEC_DEVICE float top_k_bound(int64_t k) {
    Shared& s = shared();
    count_ = chunks_ < kFew ? chunks_ : kFew;
    covered_from_ = NAN;
    float bound = -FLT_MAX;
    if (k <= count_) {
      for (int i = threadIdx.x; i < count_; i += kThreads) s.few[i] = __ldcg(chunk_max_ + i);
      bound = kth_of_few(k, bound);
    }
    if (!largest_) return bound;
    count_ = each_lane_from(bound, [&](int at, int, float z) {
      if (at < kFew) s.few[at] = z;
    });
    return count_ <= kFew ? kth_of_few(k, bound) : bound;
  }
  SPECDEC_DEVICE float kth_of_few(int64_t k, float otherwise) {
    const Kept kth = among_few(otherwise, {double(k)}, {});
    return kth.count >= k ? kth.cutoff : otherwise;
  }

  // Calls put(at, lane, its largest entry) for each lane whose largest entry is >= lo; `at` counts these lanes, and
  // `lane` is its index in lanes_. Returns how many there are.
  template <class Put>
  SPECDEC_DEVICE int each_lane_from(float lo, const Put& put) {
    Shared& s = shared();
    start_count();
    for (int i = threadIdx.x; i < chunks_ * kLanes; i += kThreads) {
      const float z = __ldcg(lanes_ + i);
      if (z >= lo) put(atomicAdd(&s.count, 1), i, z);
    }
    __syncthreads();
    return s.count;
  }
  // Sets the count to 0. Before that, a barrier lets every thread read the old count, so that all make the same
  // decisions.
  SPECDEC_DEVICE static void start_count() {
    __syncthreads();
    if (threadIdx.x == 0) shared().count = 0;
    __syncthreads();
  }

  // Gathers the logits >= lo, from the lanes that have one. Gathers nothing if they are too many, as with ties.
  SPECDEC_DEVICE void gather_lanes(float lo) {
    Shared& s = shared();
    const int lanes = each_lane_from(lo, [&](int at, int lane, float) {
      if (at < kSlots) s.low[at] = unsigned(lane);
    });
    if (lanes > kSlots) return;
    start_count();
    for (int i = threadIdx.x; i < lanes * kGroups; i += kThreads) {
      const int lane = int(s.low[i / kGroups]), in_chunk = (i % kGroups * kLanes + lane % kLanes) * kGroup;
      float z[kGroup];
      load_entries(row_, int64_t(lane / kLanes) * kChunk + in_chunk, -HUGE_VALF, z);
#pragma unroll
      for (int e = 0; e < kGroup; ++e) {
        if (!(z[e] >= lo)) continue;
        const int at = atomicAdd(&s.count, 1);
        if (at < kFew) s.few[at] = z[e];
      }
    }
    __syncthreads();
    if (s.count > kFew) return;
    above_ = {}, count_ = s.count, covered_from_ = lo;
  }

  const float* lanes_;
  bool largest_ = false;      // whether lanes_ are the largest of each lane
  float covered_from_ = NAN;  // few[] holds all logits >= this; NaN: there is no such bound
};

}  // namespace specdec
