// SPDX-License-Identifier: Apache-2.0
// Running sums over a warp, and where they cross a target.
#pragma once

#include "warp.cuh"

namespace specdec {

// Sum over this lane and those before it, of kOf lanes in front; and over those before it
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

// Values 0 .. n - 1 as a warp takes them: a run of neighbours to each lane. The first five of a run, all there are up
// to n = 160, come at once and stay at hand. load(i, inside) is value i, or where it is not inside what says nothing.
template <class Load>
struct WarpRuns {
  static constexpr int kAtHand = 5, kAtOnce = 4;
  using Value = decltype(std::declval<const Load&>()(0, true));
  Load load{};
  int begin = 0, end = 0, run = 0;  // of this lane; as long for all
  Value first[kAtHand]{};

  WarpRuns() = default;
  explicit SPECDEC_DEVICE WarpRuns(const Load& load) : load(load) {}
  SPECDEC_DEVICE WarpRuns(int n, const Load& load) : load(load), run((n + kLanes - 1) / kLanes) {
    begin = int(threadIdx.x) % kLanes * run;
    end = begin + run < n ? begin + run : n;
    take(begin, first);
  }

  // f(i, value) in turn; also beyond the end, a few times
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

  // Of each value what f makes of it
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

// The first index whose running sum exceeds `target`, with the weight in front of it and its own. The last one with
// weight stands in where rounding leaves that unreached.
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

// The first lane that is beyond, or the last one with weight
SPECDEC_DEVICE int crossing_lane(const Crossing& own) {
  const unsigned beyond = __ballot_sync(kFullWarp, own.beyond);
  const unsigned any = __ballot_sync(kFullWarp, own.index >= 0);
  return beyond ? __ffs(int(beyond)) - 1 : any ? kLanes - 1 - __clz(int(any)) : 0;
}

}  // namespace specdec
