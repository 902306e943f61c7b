// SPDX-License-Identifier: Apache-2.0
// Running sums over a warp, and the index where a running sum crosses a target.
#pragma once

#include "warp.cuh"

namespace specdec {

// warp_upto() returns the sum over this lane and the lanes before it; the result is valid in the first kOf lanes.
// warp_before() turns it into the sum over the lanes before this one.
template <int kOf = kLanes, class T>
SPECDEC_DEVICE T warp_upto(T x) {
  const int lane = threadIdx.x % kLanes;
#pragma unroll
  for (int step = 1; step < kOf; step *= 2) {
    const T other = __shfl_up_sync(kFullWarp, x, step);
    if (lane >= step) x += other;
  }
  return x;
}
template <class T>
SPECDEC_DEVICE T warp_before(T upto) {
  const T before = __shfl_up_sync(kFullWarp, upto, 1);
  return threadIdx.x % kLanes == 0 ? 0 : before;
}

// Splits the values 0 .. n - 1 among the lanes of a warp: each lane gets a run of adjacent ones. The first five values
// of a run (kAtHand) are loaded together and stay in registers; for n up to 160 these are all values. load(i, inside)
// returns value i, or a neutral value if `inside` is false because i is not in the lane's run.
template <class Load>
struct WarpRuns {
  static constexpr int kAtHand = 5, kAtOnce = 4;
  using Value = decltype(std::declval<const Load&>()(0, true));
  Load load{};
  int begin = 0, end = 0, run = 0;  // values [begin, end) of this lane; run: values per lane
  Value first[kAtHand]{};

  WarpRuns() = default;
  explicit SPECDEC_DEVICE WarpRuns(const Load& load) : load(load) {}
  SPECDEC_DEVICE WarpRuns(int n, const Load& load) : load(load), run((n + kLanes - 1) / kLanes) {
    begin = int(threadIdx.x) % kLanes * run;
    end = begin + run < n ? begin + run : n;
    take(begin, first);
  }

  // Calls f(i, value) for the lane's values in order, and after them for up to kAtHand neutral values with i >= end.
  template <class F>
  SPECDEC_DEVICE void each(const F& f) const {
#pragma unroll
    for (int r = 0; r < kAtHand; ++r) f(begin + r, first[r]);
#pragma unroll 1
    for (int i = begin + kAtHand; i < end; i += kAtOnce) {
      Value next[kAtOnce];
      take(i, next);
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) f(i + r, next[r]);
    }
  }

  // The same runs with f applied to each value
  template <class F>
  SPECDEC_DEVICE auto map(const F& f) const {
    const auto mapped = [f, load = load](int i, bool inside) { return f(load(i, inside)); };
    WarpRuns<decltype(mapped)> r(mapped);
    r.begin = begin, r.end = end, r.run = run;
#pragma unroll
    for (int k = 0; k < kAtHand; ++k) r.first[k] = f(first[k]);
    return r;
  }

 private:
  template <int N>
  SPECDEC_DEVICE void take(int from, Value (&values)[N]) const {
#pragma unroll
    for (int r = 0; r < N; ++r) values[r] = load(from + r, from + r < end);
  }
};

// Finds the first index whose running sum exceeds `target`. `before` is the sum before that index, `inside` the weight
// at it. If rounding keeps every sum from exceeding the target, the index is the last one with weight. It is -1 if
// there is no weight.
struct Crossing {
  double running, target;
  int index = -1;
  double before = 0;
  double inside = 0;
  bool beyond = false;

  SPECDEC_DEVICE void pass(int i, double weight) {
    const bool some = weight > 0;
    if (some && !beyond) index = i, before = running, inside = weight;
    running += some ? weight : 0;
    beyond |= some && running > target;
  }
};

// The first lane that crosses the target, else the last lane with weight, else 0
SPECDEC_DEVICE int crossing_lane(const Crossing& own) {
  const unsigned beyond = __ballot_sync(kFullWarp, own.beyond);
  const unsigned any = __ballot_sync(kFullWarp, own.index >= 0);
  return beyond ? __ffs(int(beyond)) - 1 : any ? kLanes - 1 - __clz(int(any)) : 0;
}

}  // namespace specdec
