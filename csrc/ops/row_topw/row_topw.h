// SPDX-License-Identifier: Apache-2.0
// The w best continuations of a beam by one token. Their scores are the beam's score plus ln p, rounded once. They are
// ranked by score, then by id.
#pragma once

#include "../../core/order.h"
#include "../../core/arguments.h"

namespace specdec {

// A beam's score and the distribution of its next token. Maps an entry of the row to the new score. A larger logit
// never gives a smaller score, but two logits may give the same score. Then the lower id is better, so ids are ranked
// by score, not by logit.
class Extension {
 public:
  SPECDEC_HD Extension(float score, const Dist& p) : score_(score), stats_(p.stats), hot_(hot_id(p)) {
    const RowStats& s = stats_;
    const bool law = s.scale > 0 && s.scale < HUGE_VALF && fabsf(s.log_norm) < HUGE_VALF && fabsf(s.max) < HUGE_VALF;
    if (!(score < HUGE_VALF && (law || hot_ >= 0))) score_ = NAN;
  }

  SPECDEC_HD float operator()(float z) const { return float(double(score_) + stats_.log_prob(z)); }

  // Whether no search is needed: all ids have the same score, except perhaps the id of a greedy row.
  SPECDEC_HD bool flat() const { return hot_ >= 0 || !(score_ > -HUGE_VALF); }
  // The order (core/order.h) of the i-th best id in that case
  SPECDEC_HD uint64_t flat_order(int64_t i) const {
    // The place of hot_ in the ranking: the first, or by its id if all scores are equal
    const int64_t place = score_ > -HUGE_VALF ? 0 : hot_;
    if (hot_ < 0 || i < place) return order_of(score_ + -HUGE_VALF, i);
    if (i == place) return order_of(score_, hot_);
    return order_of(score_ + -HUGE_VALF, i - 1 < hot_ ? i - 1 : i);
  }

 private:
  float score_;  // NaN if the beam or the row is invalid
  RowStats stats_;
  int64_t hot_;  // the id of a greedy row, else -1
};

struct RowTopW {
  int64_t N = 0, w = 0;
  SeenRows logits;               // [N, V]
  const float* score = nullptr;  // [N]
  const float* stats = nullptr;  // [N, 4]; null: made in the same pass
  Present present;               // of the N rows
  float* scores = nullptr;       // [N, w]
  int64_t* ids = nullptr;        // [N, w]

  SPECDEC_HD Extension extension(int64_t n, const RowStats& found) const {
    return {score[n], from_stats(logits.at(0, n), stats ? stats_at(stats, n) : found)};
  }
  SPECDEC_HD void put(int64_t n, int64_t i, uint64_t order) const {
    scores[n * w + i] = worth_of_order(order), ids[n * w + i] = id_of_order(order);
  }
  SPECDEC_HD void put_nothing(int64_t n, int64_t i) const { scores[n * w + i] = 0, ids[n * w + i] = -1; }
};

}  // namespace specdec
