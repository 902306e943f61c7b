// SPDX-License-Identifier: Apache-2.0
// The CPU's Executor: the steps over V that a walk needs, done by one thread with its SIMD lanes, or by all threads
// when there are fewer requests than threads; or by several ranks that hold some chunks of every row each (shards.h).
// The bits are the same in any case: chunks are the unit of work.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "../core/filters.h"
#include "../core/residual.h"
#include "row_reader.h"
#include "shards.h"
#include "threads.h"

namespace specdec {

// f(c) of every chunk, by one thread or by all.
template <class F>
void for_chunks(bool wide, int64_t chunks, const F& f) {
  if (!wide) {
    for (int64_t c = 0; c < chunks; ++c) f(c);
    return;
  }
  parallel_for(0, chunks, 8, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) f(c);
  });
}

struct ExpTotals {
  double sum, surprise;  // as ExpSums, of a row
};

class CpuExecutor {
 public:
  static constexpr bool kMixes = true, kMakesRuleDists = true;

  CpuExecutor(int64_t max_V, bool wide, ShardTask* task = nullptr);

  // Of rows spread over ranks: makes f() ask for what it needs, though the walk will want it only later. Elsewhere
  // nothing.
  template <class F>
  void ask_ahead(const F& f) const {
    if (!task_) return;
    try {
      f();
    } catch (const Unanswered&) {}
  }
  void ask_entry(const Row& row, int64_t v) const {
    if (v >= 0 && v < row.V) ask_ahead([&] { row.entry(v); });
  }
  bool is_sharded() const { return task_; }

  // What is kept of rows is of one request's: batch mates may share its rows, and what they asked of them must not
  // show.
  void forget() {
    held_ = {}, peaks_ = {}, removed_ = {};
    expect_entropy(false);
  }

  // Whether this thread writes the results of a walk, and what the walk keeps in memory: on a GPU one thread does the
  // first, and one of each block that makes the walk the second.
  bool leads() const { return true; }
  int thread() const { return 0; }
  int threads() const { return 1; }
  bool keeps() const { return true; }

  // The four floats of a row of logits. Reads the row once, without filters; leaves its chunk sums for draw().
  RowStats stats(const Row& row, const Filters& filters) {
    if (!task_) return row_stats(row, filters);
    const ShardTask::RowAsked asked = task_->asked_of(row, filters, sums_surprise_);
    return row_stats(row, filters);
  }

  // Threads of an executor meet here before one of them overwrites what others may still read, and after it.
  void sync() const {}

  // Says whether entropies will be asked of the laws to be made; then stats() sums them as it reads. What was known is
  // forgotten.
  void expect_entropy(bool expected) { sums_surprise_ = expected, known_[0] = known_[1] = {}, tv_of_[0] = {}; }

  // Says that the entropies of two laws will be asked, and perhaps their TV: one pass sums all three if one of the
  // entropies is not known.
  void expect_gap(const Dist& p, const Dist& q);

  // Total of its weights; leaves its chunk sums for draw(). NaN if p is a probability row with NaN or inf in it.
  double sum(const Residual& residual);
  double sum(const Dist& p, const Dist& q) {
    const Subtraction subtraction = subtracting(q);
    return sum(pair(p, subtraction));
  }
  double sum(const Dist& p) { return sum(p, Dist{}); }

  // What is left of a row where ids were taken out. Of logits as a law of its own: it is measured from the largest
  // logit that is left, so that nothing is lost however little that weighs; log_norm is NaN where nothing is left. It
  // leaves its chunk sums for draw().
  RowStats stats_without(const Dist& q, const Few& removed);
  // Of any row the total, in the units of q.
  double mass_without(const Dist& q, const Few& removed) const;

  // Of rows that hold a law, without a trace on the sums left behind
  double entropy(const Dist& d) const;
  PairGap gap(const Dist& p, const Dist& q);
  double tv(const Dist& p, const Dist& q);           // of rows other than two of logits it leaves sums behind
  double largest_prob(const Row& row) const;         // NaN if NaN or inf is in it, or nothing positive
  int64_t above(const Row& row, float least) const;  // how many entries are larger
  double deferred(const Mixture& mixture,
                  int64_t V) const;  // mass of the mixture's q where it is not kept, or of ids beyond V

  // Inverse CDF over the chunk sums left behind: the first id with mass whose running sum exceeds v * total.
  int64_t draw(const Residual& residual, double v) const;
  int64_t draw_in(const Residual& residual, int64_t c, double share) const;
  int64_t draw(const Dist& p, const Dist& q, double v) const {
    const Subtraction subtraction = subtracting(q);
    return draw(pair(p, subtraction), v);
  }
  int64_t draw(const Dist& p, double v) const { return draw(p, Dist{}, v); }

  // The last id taken leaves the sums of p, so that draw() draws without replacement. Returns p as it is to be drawn
  // from next; nothing where nothing is left.
  Dist exclude(const Dist& p, const Few& removed);

  // Weights of chunk c into w [kChunk]; returns their sum.
  float weights(const Residual& residual, int64_t c, float* w) const;
  float weights(const Dist& p, const Dist& q, int64_t c, float* w) const {
    const Subtraction subtraction = subtracting(q);
    return weights(pair(p, subtraction), c, w);
  }

  // Totals of p and of q; leaves both rows as probabilities for clipped_sums(). No sums held for draw() change.
  PairMass masses(const Residual& p, const Dist& q);  // of a law without subtractions
  PairMass masses(const Dist& p, const Dist& q) { return masses(Residual{p}, q); }
  void clipped_sums(const auto&, const Dist&, const float (&t)[kCandidates], double (&out)[kCandidates]) {
    clipped_sums(t, out);
  }

  // f(false) and f(true)
  template <class F>
  void both(const F& f, double& of_false, double& of_true) const {
    of_false = f(false), of_true = f(true);
  }
  // The bits of those below n where a test holds
  template <class Test>
  uint32_t which_of(int n, const Test& test) const {
    uint32_t held = 0;
    for (int i = 0; i < n; ++i) held |= uint32_t(test(i)) << i;
    return held;
  }
  // The first i in 0..31 where a test holds that holds from some i on; 32 if nowhere.
  template <class Test>
  int first_of_32(const Test& test) const {
    int none = 0, some = 32;
    while (none < some) {
      const int i = (none + some) / 2;
      test(i) ? some = i : none = i + 1;
    }
    return some;
  }

  // The largest finite entry's id, 0 if there is none.
  int64_t argmax_finite(const Row& row) const;

  // The largest entry of a chunk, NaN aside: of the row whose stats were found last, and of any.
  float chunk_max(int64_t c) const { return max_[c]; }
  float max_of_chunk(const Row& row, int64_t c) const {
    float buf[kChunk];
    return rows_.max(reader_.chunk(row, c, buf), chunk_size(row.V, c));
  }

 private:
  // take(c, f(c)) of every chunk. Of rows spread over ranks f is called of the chunks at hand, again each time if it
  // leaves what others read; others tell the first `width` bytes of what it gives for theirs.
  template <class F, class Take>
  void for_chunks(int64_t chunks, const F& f, const Take& take, size_t width = sizeof(std::invoke_result_t<F, int64_t>),
                  bool leaves = false) const {
    if (task_) return task_->for_chunks(chunks, f, take, width, leaves);
    specdec::for_chunks(wide_, chunks, [&](int64_t c) { take(c, f(c)); });
  }
  RowStats row_stats(const Row& row, const Filters& filters);

  // The n entries z of chunk c, or a copy of them in buf with `value` at a few ids
  static const float* with_few(const Few& few, int64_t c, int n, float value, const float* z, float* buf) {
    for (int64_t i = 0; i < few.n; ++i) {
      const int64_t at = few[i] - c * kChunk;
      if (at < 0 || at >= n) continue;
      if (z != buf) z = std::copy(z, z + padded(n), buf) - padded(n);
      buf[at] = value;
    }
    return z;
  }

  struct ChunkStats {
    float max;  // NaN where the chunk holds NaN or +inf
    float sum, surprise;
  };
  size_t stats_width() const { return sums_surprise_ ? sizeof(ChunkStats) : offsetof(ChunkStats, surprise); }
  ChunkStats stats_of(Entries z, int n, float scale, float cutoff) const;
  void take(int64_t c, const ChunkStats& x) { max_[c] = x.max, sum_[c] = x.sum, surprise_[c] = x.surprise; }
  ExpTotals total_at(float max, float scale);
  float normalise(double total);
  float cutoff(const Row& row, const Filters& filters, float scale, float max);

  // Of filters (row_filters.cpp): the place from which on logits weigh enough
  struct Search {
    float lo, max;       // it lies in [lo, below); max: the row's
    double target, all;  // what is to be reached; what the logits from lo on weigh, or a guess
    bool counts;         // whether each weighs 1, else exp((z - peak) * scale)
    float peak = 0, scale = 0;
    float below = std::nextafter(max, HUGE_VALF);
    double above = 0;  // what those from `below` on weigh
    void narrow(const float (&t)[kThresholds], const double (&weight)[kThresholds]);
  };
  static constexpr size_t kFew = 512;          // that are sorted
  static constexpr size_t kMost = 8 * kChunk;  // that are listed
  static constexpr int kSample = 256;          // entries at equal steps along a row
  static constexpr int64_t kTold = 256;        // of the largest entries, that ranks tell each other
  double kept_sum(const Row& row, float max, float scale, float cutoff);
  float top_k_bound(int64_t k) const;
  float top_k_over_ranks(const Row& row, int64_t k, float lo) const;
  float top_k_by_digits(const Row& row, int64_t k, float lo) const;
  template <class F>
  void for_local_entries(const Row& row, float lo, float below, const F& f) const;
  void start_nucleus(const Row& row, const Filters& filters, Search& search) const;
  float crossing(const Row& row, Search& search) const;
  // What a search looks at: a row, or a list of what is left of it, which every rank has whole
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
  // Chunk c of a law as its row holds it, 0 beyond the row, with what it has of a few ids
  const float* probs(const Dist& d, const Few& few, int64_t c, int n, float* buf) const;
  const float* probs(const Dist& d, int64_t c, int n, float* buf) const { return probs(d, d.few(), c, n, buf); }
  // f(chunk) summed in the order of the chunks
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
  ShardTask* task_;  // null where rows are whole
  RowReader reader_;

  int64_t chunks_ = 0;       // of the row whose sums are held
  Dist held_;                // whose plain sums they are, if anyone's
  Few removed_;              // what draw() must not draw
  std::vector<float> max_;   // [chunks]
  RowId peaks_;              // of the row that max_ is of
  std::vector<double> sum_;  // [chunks]
  bool sums_surprise_ = false;
  std::vector<float> surprise_;  // [chunks]
  std::vector<float> lane_max_;  // [chunks, kPad], of a row that top-k filters: of entries at the same place in a group
  struct {
    Dist of;
    double entropy = 0;
  } known_[2];     // the last two
  Dist tv_of_[2];  // p and q of the last TV
  double tv_ = 0;
  using PairSums = std::array<double, kCandidates>;
  int64_t pair_V_ = 0;
  std::vector<PairSums> pair_sums_;  // [chunks]
};

}  // namespace specdec
