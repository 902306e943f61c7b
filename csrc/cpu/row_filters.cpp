// SPDX-License-Identifier: Apache-2.0
// CpuExecutor's search for the cutoff of a row's filters. The filters are applied in this order: top-n-sigma and min-p,
// top-k, top-p. Each keeps the logits z >= cutoff, so it never separates equal logits.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>

#include "row_executor.h"

namespace specdec {

float CpuExecutor::cutoff(const Row& row, const Filters& filters, float scale, float max) {
  float kept = filters.min_p_cutoff(max);
  if (filters.top_n_sigma > 0) kept = std::max(kept, filters.top_n_sigma_cutoff(max, spread(row, max)));
  if (filters.top_k_on(row.V) && task_) {
    kept = top_k_over_ranks(row, filters.top_k, kept);
  } else if (filters.top_k_on(row.V)) {
    Search search{std::max(kept, top_k_bound(filters.top_k)), max, double(filters.top_k), double(row.V), true};
    kept = crossing(row, search);
  }
  if (filters.top_p < 1) {
    Search search{kept, max, filters.top_p, 1, false, max, scale};
    start_nucleus(row, filters, search);
    kept = crossing(row, search);
  }
  return kept;
}

// This is a separate pass, because the row's maximum is known only after the first one. Sums relative to the maxima of
// the chunks would have to be converted to the row's maximum.
Spread CpuExecutor::spread(const Row& row, float max) const {
  std::vector<Spread> parts(chunks_);
  const auto spread_of = [&](int64_t c) {
    float buf[kChunk];
    return rows_.spread(reader_.chunk(row, c, buf), chunk_size(row.V, c), max);
  };
  for_chunks(chunks_, spread_of, [&](int64_t c, const Spread& x) { parts[c] = x; });
  Spread all;
  for (const Spread& x : parts) all.add(x);
  return all;
}

// The total weight of the kept logits. Stores their chunk sums in sum_.
double CpuExecutor::kept_sum(const Row& row, float max, float scale, float cutoff) {
  const auto sum_of = [&](int64_t c) {
    if (max_[c] < cutoff) return 0.0f;
    float buf[kChunk];
    return rows_.exp_sum(reader_.chunk(row, c, buf), chunk_size(row.V, c), max, scale, cutoff);
  };
  for_chunks(chunks_, sum_of, [&](int64_t c, float sum) { sum_[c] = sum; });
  double total = 0;
  for (int64_t c = 0; c < chunks_; ++c) total += sum_[c];
  return total;
}

// The k-th largest of `some`, counted from 1; `otherwise` if there are fewer than k. Reorders `some`.
static float kth_largest(std::vector<float>& some, int64_t k, float otherwise) {
  if (k > int64_t(some.size())) return otherwise;
  std::nth_element(some.begin(), some.begin() + (k - 1), some.end(), std::greater<float>());
  return some[k - 1];
}

// A value that at least k logits reach, or -inf. It is the k-th largest of lane_max_. Only maxima that reach the k-th
// largest of the chunks' maxima are compared.
float CpuExecutor::top_k_bound(int64_t k) const {
  std::vector<float> some(max_.begin(), max_.begin() + chunks_);
  const float least = kth_largest(some, k, -HUGE_VALF);
  some.clear();
  for (int64_t i = 0; i < chunks_ * kPad; ++i)
    if (lane_max_[i] >= least) some.push_back(lane_max_[i]);
  return kth_largest(some, k, -HUGE_VALF);
}

// The k-th largest entry if it is above lo, else lo. For small k the ranks exchange their k largest entries, for larger
// k counts of the digits of the entries' sort keys. Both ways find the same entry.
float CpuExecutor::top_k_over_ranks(const Row& row, int64_t k, float lo) const {
  if (k > kMostExchanged) return top_k_by_digits(row, k, lo);
  const size_t bytes = k * sizeof(float);
  const char* all = task_->exchange(bytes, [&](char* mine) {
    std::vector<float> some;
    for_local_entries(row, lo, HUGE_VALF, [&](float z) {
      some.push_back(z);
      if (int64_t(some.size()) < 4 * kMostExchanged) return;
      std::nth_element(some.begin(), some.begin() + (k - 1), some.end(), std::greater<float>());
      some.resize(k);
    });
    std::sort(some.begin(), some.end(), std::greater<float>());
    some.resize(k, -HUGE_VALF);
    std::memcpy(mine, some.data(), bytes);
  });
  std::vector<float> some(task_->split.ranks() * k);
  std::memcpy(some.data(), all, some.size() * sizeof(float));
  return std::max(lo, kth_largest(some, k, lo));
}

float CpuExecutor::top_k_by_digits(const Row& row, int64_t k, float lo) const {
  using Counts = std::array<uint32_t, 256>;
  uint32_t prefix = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    const std::vector<Counts> of_ranks = task_->on_each_rank<Counts>([&] {
      Counts counts{};
      for_local_entries(row, lo, HUGE_VALF, [&](float z) {
        const uint32_t key = ordered(z + 0.0f);
        if (uint64_t(key) >> (shift + 8) == uint64_t(prefix) >> (shift + 8)) ++counts[key >> shift & 255];
      });
      return counts;
    });
    std::array<int64_t, 256> counts{};
    for (const Counts& of_rank : of_ranks)
      for (int i = 0; i < 256; ++i) counts[i] += of_rank[i];
    int digit = 255;
    while (digit >= 0 && counts[digit] < k) k -= counts[digit--];
    if (digit < 0) return lo;  // there are fewer than k
    prefix |= uint32_t(digit) << shift;
  }
  return from_ordered(prefix);
}

// Calls f(z) for the entries in [lo, below) of this rank's chunks, in the order of their ids.
template <class F>
void CpuExecutor::for_local_entries(const Row& row, float lo, float below, const F& f) const {
  const int64_t chunks = chunk_count(row.V);
  for (int64_t c = task_->split.begin(chunks); c < task_->split.end(chunks); ++c) {
    if (max_[c] < lo) continue;
    float buf[kChunk];
    int hits[kChunk];
    const float* z = reader_.floats(row, c, -HUGE_VALF, buf);
    const int n = rows_.find(z, padded(chunk_size(row.V, c)), lo, below, hits);
    for (int i = 0; i < n; ++i) f(z[hits[i]]);
  }
}

// The largest logit z* >= lo such that the logits >= z* weigh at least `target`. If all logits >= lo together weigh
// less, the result keeps them all. Passes over the row narrow the interval [lo, below) around z*, until its logits fit
// in a list.
float CpuExecutor::crossing(const Row& row, Search& search) const {
  std::vector<float> list, next;
  Source source{row.V, &row};
  if (gather(source, search, list)) source = {list};
  while (source.row || list.size() > kFew) {
    float t[kThresholds];
    if (!thresholds(source, search, t)) return search.lo;  // only ties of lo are left
    double weight[kThresholds];
    weigh(source, search, t, weight);
    search.narrow(t, weight);
    if (!gather(source, search, next)) continue;
    list.swap(next);
    source = {list};
  }
  if (search.counts) return kth_largest(list, int64_t(search.target - search.above), search.lo);
  std::sort(list.begin(), list.end(), std::greater<float>());
  const int n = int(list.size());
  list.resize(padded(n), -HUGE_VALF);
  float weight[kFew];
  rows_.probs(Entries::copied(list.data()), n, {search.scale, -FLT_MAX, 0, search.peak}, weight);
  for (int i = 0; i < n; ++i)
    if ((search.above += weight[i]) >= search.target) return list[i];
  return n ? list[n - 1] : search.lo;
}

void CpuExecutor::Search::narrow(const float (&t)[kThresholds], const double (&weight)[kThresholds]) {
  for (int m = kThresholds - 1; m >= 0; --m) {
    if (weight[m] >= target) {
      lo = t[m], all = weight[m];
      return;
    }
    below = t[m], above = weight[m];
  }
}

// Starts the search for top-p's cutoff: one pass over the row sums the weight that the earlier filters keep, and
// narrows the search.
void CpuExecutor::start_nucleus(const Row& row, const Filters& filters, Search& search) const {
  const Source source{row.V, &row};
  float t[kThresholds];
  double weight[kThresholds];
  if (!thresholds(source, search, t)) std::fill(t, t + kThresholds, search.lo);
  t[0] = search.lo;
  weigh(source, search, t, weight);
  search.target = filters.top_p * weight[0];
  const float bound = filters.top_p_bound(search.max, weight[0], row.V);
  search.narrow(t, weight);
  search.lo = std::max(search.lo, std::min(bound, search.max));
}

const float* CpuExecutor::floats(const Source& source, int64_t c, float* buf) const {
  const int n = chunk_size(source.V, c);
  return source.row ? reader_.floats(*source.row, c, -HUGE_VALF, buf)
                    : rows_.load(source.list + c * kChunk, n, n, -HUGE_VALF, buf);
}

// Lists all logits in [lo, below). Returns false if there are more than kMost.
bool CpuExecutor::gather(const Source& source, const Search& search, std::vector<float>& list) const {
  list.clear();
  if (task_ && source.row) return gather_over_ranks(*source.row, search, list);
  for (int64_t c = 0; c < chunk_count(source.V); ++c) {
    if (source.row && max_[c] < search.lo) continue;
    float buf[kChunk];
    int hits[kChunk];
    const float* z = floats(source, c, buf);
    const int n = rows_.find(z, padded(chunk_size(source.V, c)), search.lo, search.below, hits);
    if (list.size() + n > kMost) return false;
    for (int i = 0; i < n; ++i) list.push_back(z[hits[i]]);
  }
  return true;
}

bool CpuExecutor::gather_over_ranks(const Row& row, const Search& search, std::vector<float>& list) const {
  const auto for_entries = [&](const auto& f) { for_local_entries(row, search.lo, search.below, f); };
  const auto count = [&] {
    uint32_t n = 0;
    for_entries([&](float) { ++n; });
    return n;
  };
  const std::vector<uint32_t> counts = task_->on_each_rank<uint32_t>(count);
  if (std::accumulate(counts.begin(), counts.end(), size_t(0)) > kMost) return false;
  list = task_->entries_of(row, counts, for_entries);
  return true;
}

// Sets weight[m] to the weight of the logits >= t[m]. No t[m] is below lo.
void CpuExecutor::weigh(const Source& source, const Search& search, const float (&t)[kThresholds],
                        double (&weight)[kThresholds]) const {
  using Sums = std::array<float, kThresholds>;
  std::vector<Sums> parts(chunk_count(source.V));
  const auto sums_of = [&](int64_t c) {
    Sums sums{};
    if (source.row && max_[c] < search.lo) return sums;
    float buf[kChunk];
    rows_.kept_sums(floats(source, c, buf), chunk_size(source.V, c), search.peak, search.scale, t, sums.data());
    return sums;
  };
  const auto take = [&](int64_t c, const Sums& sums) { parts[c] = sums; };
  if (source.row)
    for_chunks(parts.size(), sums_of, take);
  else  // a list is short, and every rank has all of it
    specdec::for_chunks(wide_, parts.size(), [&](int64_t c) { take(c, sums_of(c)); });
  std::fill(weight, weight + kThresholds, source.row ? 0 : search.above);  // a list lacks the logits >= below
  for (const auto& part : parts)
    for (int m = 0; m < kThresholds; ++m) weight[m] += part[m];
}

void CpuExecutor::sample(const Source& source, float (&sample)[kSample]) const {
  const auto id = [&](int64_t i) { return i * source.V / kSample; };
  if (!task_ || !source.row) {
    for (int64_t i = 0; i < kSample; ++i)
      sample[i] = source.row ? reader_.entry(*source.row, id(i)) : source.list[id(i)];
    return;
  }
  const Split& split = task_->split;
  std::vector<uint32_t> counts(split.ranks());
  for (int64_t i = 0; i < kSample; ++i) ++counts[split.owner(id(i) / kChunk)];
  const std::vector<float> all = task_->entries_of(*source.row, counts, [&](const auto& put) {
    for (int64_t i = 0; i < kSample; ++i)
      if (split.has(id(i) / kChunk)) put(reader_.entry(*source.row, id(i)));
  });
  std::copy(all.begin(), all.end(), sample);
}

// Sets t to ascending thresholds in (lo, below), taken from a sample of logits at equal steps along the row. The search
// looks for a share of the weight in the interval. Added from its largest logit down, the sample reaches this share of
// its own weight at some logit; the thresholds are around that one. If few sampled logits are in the interval, the
// thresholds are spread over them. If none is, they are floats at equal steps, and the first is the float after lo.
// Returns false if there is no float inside.
bool CpuExecutor::thresholds(const Source& source, const Search& search, float (&t)[kThresholds]) const {
  float sample[kSample], weight[kSample] = {};
  this->sample(source, sample);
  const int n = int(
      std::remove_if(sample, sample + kSample, [&](float z) { return !(z > search.lo && z < search.below); }) - sample);
  if (!n) {
    const uint32_t bottom = ordered(search.lo), steps = ordered(search.below) - bottom;
    for (int m = 0; m < kThresholds && steps > 1; ++m)
      t[m] = from_ordered(bottom + std::max(1u, uint32_t(uint64_t(steps) * m / kThresholds)));
    return steps > 1;
  }
  std::sort(sample, sample + n);
  std::fill(sample + n, sample + padded(n), -HUGE_VALF);
  const double share = (search.target - search.above) / (search.all - search.above);
  const double wanted =
      share * rows_.probs(Entries::copied(sample), n, {search.scale, -FLT_MAX, 0, search.peak}, weight);
  int at = n;
  for (double sum = 0; at > 0 && sum < wanted;) sum += weight[--at];
  constexpr float kSteps[kThresholds] = {-0.5f, -0.075f, -0.035f, -0.012f, 0.012f, 0.035f, 0.075f, 0.5f};
  for (int m = 0; m < kThresholds; ++m) {
    const int i = n > 2 * kThresholds ? at + int(std::lround(kSteps[m] * n)) : n * m / kThresholds;
    t[m] = sample[std::clamp(i, 0, n - 1)];
  }
  return true;
}

}  // namespace specdec
