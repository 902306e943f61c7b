// SPDX-License-Identifier: Apache-2.0
// The distributions that the children of a tree's nodes were drawn from: q, or the rest of q without tokens that were
// removed.
#pragma once

#include "../../core/final_token.h"
#include "tree.h"

namespace specdec {

// The rest of a draft distribution without the removed tokens, from which a child was drawn. For logits, it has a
// log_norm and a maximum of its own. For probabilities, it has the share of the row's mass that remains.
struct Left {
  bool any = true;  // false: no mass remains, or the row is invalid
  float log_norm = 0, max = 0;
  float share = 1;
};

template <class Executor>
class DraftDists {
 public:
  SPECDEC_HD DraftDists(Executor& executor, const VerifyTree& a, int64_t b) : a(a), b(b), executor_(executor) {}

  const VerifyTree& a;
  const int64_t b;
  int32_t status = 0;
  Residual rest;  // p or pi at the current node, after rejections; its subtractions are the last on the request's stack

  SPECDEC_HD int64_t token(int32_t child) const { return a.node_tokens.at(b, child); }
  SPECDEC_HD int64_t parent(int32_t child) const { return a.parents.at(b, child); }

  // The index of the row that a child was drawn from; -1: one-hot
  SPECDEC_HD int64_t draft_row(int32_t child) const {
    if (!a.draft.memory) return -1;
    const int64_t row = a.draft_row ? a.draft_row.at(b, child) : parent(child);
    return row < 0 ? -1 : row;
  }

  // Whether two children were drawn from one distribution
  SPECDEC_HD bool same_dist(int32_t x, int32_t y) const {
    const int64_t row = draft_row(x);
    return row == draft_row(y) && (row >= 0 || token(x) == token(y));
  }

  // q of a child's token. It is 0 if q is not a probability, and NaN if the row is invalid; both cases set
  // kInvalidDraft. Calls look_up().
  SPECDEC_HD double draft(int32_t child) {
    look_up(child);
    return draft_again(child);
  }
  // The same, directly after draft() of a child with the same distribution
  SPECDEC_HD double draft_again(int32_t child) { return draft_of(child, all_of(known_)); }
  // The same for a child that was drawn from the rest `left` of its distribution, directly after look_up()
  SPECDEC_HD double draft_of(int32_t child, const Left& left) {
    if (draft_row(child) < 0) return 1;
    if (known_.kind == Kind::kNothing || !known_.valid()) {
      status |= kInvalidRow | kInvalidDraft;
      return NAN;
    }
    const double q = left.any ? draft_prob(dist_of(child, left).prob(token(child))) / left.share : 0;
    if (!(q > 0)) status |= kInvalidDraft;
    return q;
  }
  // Looks up the distribution of the row that a child was drawn from. It becomes the known distribution.
  SPECDEC_HD void look_up(int32_t child) {
    const int64_t row = draft_row(child);
    const int64_t at = parent(child);
    if (row < 0 || seen(row, at) == known_row_) return;
    held_ = held_ && a.draft.stats;
    recall(row, at,
           row < a.draft.per_request ? a.draft.dist_by_id(executor_, -1, b, row, at, b * a.N + child) : Dist{});
  }
  // The distribution that a child was drawn from, directly after look_up() or recall() of it
  SPECDEC_HD Dist dist_of(int32_t child) const { return draft_row(child) < 0 ? one_hot(token(child)) : known_; }
  SPECDEC_HD const Dist& known() const { return known_; }
  // Makes `dist` the known distribution. It is that of a draft row, with its view for the children of `parent`.
  SPECDEC_HD void recall(int64_t row, int64_t parent, const Dist& dist) {
    known_row_ = seen(row, parent), known_ = dist;
  }

  // The same for a child that was drawn from the rest `left`
  SPECDEC_HD Dist dist_of(int32_t child, const Left& left) const {
    Dist q = left.any ? dist_of(child) : Dist{};
    if (q.kind == Kind::kLogits) q.stats.log_norm = left.log_norm, q.stats.max = left.max;
    return q;
  }
  SPECDEC_HD static Left all_of(const Dist& q) {
    return {q.kind != Kind::kNothing && q.valid(), q.stats.log_norm, q.stats.max};
  }

  // The rest of the distribution that a child is drawn from, without the tokens removed so far. Call it directly after
  // look_up() of the child.
  SPECDEC_HD Left left_of(int32_t child) {
    const Dist q = dist_of(child);
    Left left = all_of(q);
    const bool row = q.kind == Kind::kLogits || q.kind == Kind::kProbs;
    if (!left.any || rest.n == 0 || !row) return left;
    const Few removed = removed_by(rest.subtractions, rest.n);
    if (q.kind == Kind::kProbs) {
      held_ = false;
      left.share = float(executor_.mass_without(q, removed));
      left.any = left.share >= FLT_MIN;
      return left;
    }
    double share = 1;
    for (int64_t i = 0; i < rest.n; ++i) share -= removed[i] < 0 ? 0 : q.prob(removed[i]);
    if (share > 0.125) {
      left.log_norm += float(log(share));
      return left;
    }
    held_ = false;  // 1 minus the removed mass would cancel, so the rest is summed, relative to its own maximum
    const RowStats stats = executor_.stats_without(q, removed);
    return {stats.log_norm == stats.log_norm, stats.log_norm, stats.max};
  }

 protected:
  Executor& executor_;
  bool held_ = false;  // the executor holds the sums of `rest`

 private:
  // A key for a draft row with the view for the children of a node. If there are views, its upper half is the node.
  SPECDEC_HD int64_t seen(int64_t row, int64_t parent) const {
    const int64_t there = row < a.draft.per_request ? row : a.draft.per_request;
    return a.draft.views ? there | parent << 32 : there;
  }

  int64_t known_row_ = -1;  // the key, from seen()
  Dist known_;              // the distribution of this row
};

}  // namespace specdec
