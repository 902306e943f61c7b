// SPDX-License-Identifier: Apache-2.0
// The CPU's Executor: the operations over V that a walk (an op's work on one request or row) needs. They run on one
// thread with SIMD, or on all threads if there are few requests with long rows. Several ranks may each hold some chunks
// of every row (shards.h). The results are the same bits in all cases, because chunks are the unit of work.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "../core/filters.h"
#include "../core/race.h"
#include "../core/residual.h"
#include "../threads.h"
#include "row_reader.h"
#include "shards.h"

namespace specdec {

struct ExpTotals {
  double sum, surprise;  // ExpSums (simd_kernels.h) of a whole row
};

class FirstRacers;  // first_racers.h

class CpuExecutor {
 public:
  static constexpr bool kMixes = true, kMakesRuleDists = true;

  CpuExecutor(int64_t max_V, bool wide, ShardTask* task = nullptr);

  // For rows spread over ranks: calls f(), which requests from the other ranks data that the walk will need later. For
  // other rows, does nothing.
  template <class F>
  void ask_ahead(const F& f) const {
    if (!task_) return;
    try {
      f();
    } catch (const Unanswered&) {}
  }
  void ask_entry(const Row& row, int64_t v) const {
    if (v >= 0 && v < row.V && !row.ids) ask_ahead([&] { row.entry(v); });
  }
  bool is_sharded() const { return task_; }

  // Drops the cached values of rows. Called before each request: requests may share rows, and no result may depend on
  // the values that another request cached.
  void forget() {
    held_ = {}, peaks_ = {}, removed_ = {};
    expect_entropy(false);
  }

  // leads(): this thread writes the results of a walk. keeps(): it writes the walk's working memory. On a GPU one
  // thread leads, and one of each block of the walk keeps.
  bool leads() const { return true; }
  int thread() const { return 0; }
  int threads() const { return 1; }
  bool keeps() const { return true; }

  // The stats of a row of logits; without filters, in one pass. Stores the chunk sums that draw() needs.
  RowStats stats(const Row& of, const Filters& filters) {
    const Row row = of.as_stored();
    if (!task_) return row_stats(row, filters);
    // While `asked` exists, exchanges use the answers for this row.
    const ShardTask::RowAsked asked = task_->asked_of(row, filters, sums_surprise_);
    return row_stats(row, filters);
  }

  // A barrier of the executor's threads, before and after one of them writes what the others read
  void sync() const {}

  // Sets whether stats() also computes the entropy of a row without filters. Drops known entropies and the known TV.
  void expect_entropy(bool expected) { sums_surprise_ = expected, known_[0] = known_[1] = {}, tv_of_[0] = {}; }

  // Prepares for entropy(p), entropy(q) and tv(p, q): one pass computes all three. Does nothing if both entropies are
  // known, if p or q is not a row of logits, or if several entries of q have the same id.
  void expect_gap(const Dist& p, const Dist& q);

  // The total weight of a residual; NaN if p is a probability row with NaN or +inf. Stores the chunk sums for draw().
  double sum(const Residual& residual);
  double sum(const Dist& p, const Dist& q) {
    const Subtraction subtraction = subtracting(q);
    return sum(pair(p, subtraction));
  }
  double sum(const Dist& p) { return sum(p, Dist{}); }

  // The stats of q, a row of logits, without the removed ids. They are relative to the largest remaining logit, so they
  // stay precise. log_norm is NaN if no logit remains. Stores the chunk sums for draw().
  RowStats stats_without(const Dist& q, const Few& removed);
  // The mass of q, a row of either kind, without the removed ids
  double mass_without(const Dist& q, const Few& removed) const;

  // Measures of valid rows. The stored chunk sums stay, except as noted.
  double entropy(const Dist& d) const;
  PairGap gap(const Dist& p, const Dist& q);
  double tv(const Dist& p, const Dist& q);           // stores chunk sums unless both are logits
  double largest_prob(const Dist& d) const;          // NaN if the row holds NaN or +inf, or nothing positive
  int64_t above(const Row& row, float least) const;  // how many entries are > least
  // The mass of the mixture's q on ids that are >= V or that the mixture does not keep
  double deferred(const Mixture& mixture, int64_t V) const;

  // Inverse CDF over the stored chunk sums: the id of the first entry with mass whose running sum exceeds v * total
  int64_t draw(const Residual& residual, double v) const;
  int64_t draw_in(const Residual& residual, int64_t c, double share) const;
  int64_t draw(const Dist& p, const Dist& q, double v) const {
    const Subtraction subtraction = subtracting(q);
    return draw(pair(p, subtraction), v);
  }
  int64_t draw(const Dist& p, double v) const { return draw(p, Dist{}, v); }

  // For draws without replacement: takes the last of the removed ids out of the chunk sums of p. Returns the
  // distribution to draw from next; its kind is kNothing if no mass is left.
  Dist exclude(const Dist& p, const Few& removed);

  // The winner of a race (core/race.h) on the row of d; -1 if nothing is kept, or a probability is NaN or +inf.
  // `taken`: the earlier winners on this row, in order; they are excluded. k: how many winners the caller will ask for.
  // The first call finds all k; later calls return the next one each.
  int64_t race(const Dist& d, const Noise& noise, const Few& taken = {}, int64_t k = 1);

  // Writes the weights of chunk c to w [kChunk], unless p is by id and has no entry there. Returns their sum.
  float weights(const Residual& residual, int64_t c, float* w) const;
  float weights(const Dist& p, const Dist& q, int64_t c, float* w) const {
    const Subtraction subtraction = subtracting(q);
    return weights(pair(p, subtraction), c, w);
  }

  // The totals of p and q. Stores both as probabilities for clipped_sums(). The chunk sums for draw() stay.
  PairMass masses(const Residual& p, const Dist& q);  // p has no subtractions
  PairMass masses(const Dist& p, const Dist& q) { return masses(Residual{p}, q); }
  // The two distributions are those that masses() stored.
  void clipped_sums(const auto&, const Dist&, const float (&t)[kCandidates], double (&out)[kCandidates]) {
    clipped_sums(t, out);
  }

  // Calls f(false) and f(true).
  template <class F>
  void both(const F& f, double& of_false, double& of_true) const {
    of_false = f(false), of_true = f(true);
  }
  // A word whose bit i is test(i), for i < n
  template <class Test>
  uint32_t which_of(int n, const Test& test) const {
    uint32_t held = 0;
    for (int i = 0; i < n; ++i) held |= uint32_t(test(i)) << i;
    return held;
  }
  // The first i in 0..31 for which a monotone test holds, 32 if there is none
  template <class Test>
  int first_of_32(const Test& test) const {
    int none = 0, some = 32;
    while (none < some) {
      const int i = (none + some) / 2;
      test(i) ? some = i : none = i + 1;
    }
    return some;
  }

  // The id of the largest finite entry, 0 if there is none
  int64_t argmax_finite(const Row& row) const {
    const int64_t at = largest_finite(row);
    return at < 0 ? 0 : row.id_at(at);
  }

  // The largest entry of a chunk of the row that stats() read last. NaN if the chunk holds NaN or +inf.
  float chunk_max(int64_t c) const { return max_[c]; }
  // The largest entry of a chunk of any row, NaN aside
  float max_of_chunk(const Row& row, int64_t c) const {
    float buf[kChunk];
    return rows_.max(reader_.chunk(row, c, buf), chunk_size(row.V, c));
  }

 private:
  // Calls take(c, f(c)) for every chunk. Ranks run f on the chunks that they have, and exchange the first `width` bytes
  // of each result. `leaves`: f also stores values, so it runs even if the results are known.
  template <class F, class Take>
  void for_chunks(int64_t chunks, const F& f, const Take& take, size_t width = sizeof(std::invoke_result_t<F, int64_t>),
                  bool leaves = false) const {
    if (task_) return task_->for_chunks(chunks, f, take, width, leaves);
    specdec::for_chunks(wide_, chunks, [&](int64_t c) { take(c, f(c)); });
  }
  RowStats row_stats(const Row& row, const Filters& filters);
  int64_t largest_finite(const Row& row) const;  // the place of the entry; -1 if there is none

  // The n entries z of chunk c of a row, with the entries of a few ids replaced by `value`. The result is a copy in buf
  // if any of these ids is in the chunk, else z.
  static const float* with_few(const Row& row, const Few& few, int64_t c, int n, float value, const float* z,
                               float* buf);

  struct ChunkStats {
    float max;  // NaN if the chunk holds NaN or +inf
    float sum, surprise;
  };
  size_t stats_width() const { return sums_surprise_ ? sizeof(ChunkStats) : offsetof(ChunkStats, surprise); }
  ChunkStats stats_of(const Entries& z, int n, float max, float scale, float cutoff) const;
  ChunkStats stats_of_chunk(const Row& row, int64_t c, float scale, float* lanes) const;
  void take(int64_t c, const ChunkStats& x) { max_[c] = x.max, sum_[c] = x.sum, surprise_[c] = x.surprise; }
  ExpTotals total_at(float max, float scale);
  std::vector<Racer> first_racers(const Dist& d, const Noise& noise, int64_t k, double least) const;
  void add_racers(const Dist& d, int64_t c, const Noise& noise, FirstRacers& to) const;
  float normalise(double total);
  float cutoff(const Row& row, const Filters& filters, float scale, float max);

  // A search for the cutoff of a filter (row_filters.cpp): the largest logit that keeps enough weight
  struct Search {
    float lo, max;       // the cutoff is in [lo, below); max: the row's largest logit
    double target, all;  // target: weight to reach; all: that of the logits >= lo, or a guess
    bool counts;         // whether each logit weighs 1; else exp((z - peak) * scale)
    float peak = 0, scale = 0;
    float below = std::nextafter(max, HUGE_VALF);
    double above = 0;  // weight of the logits >= below
    void narrow(const float (&t)[kThresholds], const double (&weight)[kThresholds]);
  };
  static constexpr size_t kFew = 512;             // a list this short is narrowed no more
  static constexpr size_t kMost = 8 * kChunk;     // the longest list
  static constexpr int kSample = 256;             // entries at equal steps along a row
  static constexpr int64_t kMostExchanged = 256;  // the largest k for which each rank sends its k largest entries
  Spread spread(const Row& row, float max) const;
  double kept_sum(const Row& row, float max, float scale, float cutoff);
  float top_k_bound(int64_t k) const;
  float top_k_over_ranks(const Row& row, int64_t k, float lo) const;
  float top_k_by_digits(const Row& row, int64_t k, float lo) const;
  template <class F>
  void for_local_entries(const Row& row, float lo, float below, const F& f) const;
  void start_nucleus(const Row& row, const Filters& filters, Search& search) const;
  float crossing(const Row& row, Search& search) const;
  // The logits that a search reads: a row, or a list of the logits in [lo, below). Every rank has the whole list.
  struct Source {
    int64_t V;
    const Row* row = nullptr;
    const float* list = nullptr;
    Source(int64_t V, const Row* row) : V(V), row(row) {}
    Source(const std::vector<float>& list) : V(int64_t(list.size())), list(list.data()) {}
  };
  const float* floats(const Source& source, int64_t c, float* buf) const;
  bool gather(const Source& source, const Search& search, std::vector<float>& list) const;
  bool gather_over_ranks(const Row& row, const Search& search, std::vector<float>& list) const;
  void sample(const Source& source, float (&sample)[kSample]) const;
  void weigh(const Source& source, const Search& search, const float (&t)[kThresholds],
             double (&weight)[kThresholds]) const;
  bool thresholds(const Source& source, const Search& search, float (&t)[kThresholds]) const;

  static Residual pair(const Dist& p, const Subtraction& q) {
    return {p, &q, q.q.kind == Kind::kNothing ? 0 : 1, nullptr};
  }
  static bool same(const Dist& a, const Dist& b) {
    return a.kind == b.kind && a.row.id() == b.row.id() && std::memcmp(&a.stats, &b.stats, sizeof(RowStats)) == 0;
  }
  bool holds(const Dist& p) const;
  bool has_peaks(const Row& row) const { return peaks_ == row.id(); }
  void remember(const Dist& d, double entropy) { known_[0] = known_[1], known_[1] = {d, entropy}; }
  const double* known(const Dist& d) const {
    for (const auto& [of, entropy] : known_)
      if (same(of, d)) return &entropy;
    return nullptr;
  }
  double fill(const Dist& d, bool draft, int64_t c, int n, float* out) const;
  double fill(const Residual& p, int64_t c, int n, float* out) const;
  void clipped_sums(const float (&t)[kCandidates], double (&out)[kCandidates]);
  float plain_weights(const Dist& p, int64_t c, float* w) const;
  float mixed_weights(const Dist& p, const Mixture& mixture, int64_t c, float* w) const;
  // Chunk c of d as probabilities, 0 beyond the row, with `few` applied. A probability row may keep invalid entries.
  const float* probs(const Dist& d, const Few& few, int64_t c, int n, float* buf) const;
  const float* probs(const Dist& d, int64_t c, int n, float* buf) const { return probs(d, d.few(), c, n, buf); }
  // The sum of f(chunk), added in the order of the chunks
  template <class F>
  double total_of(int64_t chunks, const F& f) const {
    std::vector<double> sums(chunks);
    for_chunks(chunks, f, [&](int64_t c, double sum) { sums[c] = sum; });
    double total = 0;
    for (const double x : sums) total += x;
    return total;
  }
  const RowKernels& rows_ = rows();
  bool wide_;
  ShardTask* task_;  // null if rows are whole
  RowReader reader_;

  int64_t chunks_ = 0;       // of the row of sum_
  Dist held_;                // the distribution whose chunk sums are in sum_, if any
  Few removed_;              // ids that draw() must not draw
  std::vector<float> max_;   // [chunks]
  RowId peaks_;              // the row of max_
  std::vector<double> sum_;  // [chunks]
  bool sums_surprise_ = false;
  std::vector<float> surprise_;  // [chunks]
  std::vector<float> lane_max_;  // [chunks, kPad], for top-k: maxima over the entries i with equal i % kPad
  struct {
    Dist of;
    double entropy = 0;
  } known_[2];     // the last two entropies
  Dist tv_of_[2];  // p and q of the last TV
  double tv_ = 0;
  using PairSums = std::array<double, kCandidates>;
  int64_t pair_V_ = 0;
  std::vector<PairSums> pair_sums_;  // [chunks]
  std::vector<Racer> racers_;        // the first k of the last race, in order
};

}  // namespace specdec
