// SPDX-License-Identifier: Apache-2.0
// The walk down a tree: what it has emitted, the residual at the node where it stands, and the final draw.
#pragma once

#include "../common/draw.h"
#include "tree.h"

namespace specdec {

template <class Team>
class Walk {
 public:
  SPECDEC_HD Walk(Team& team, const VerifyTree& a, int64_t b, Link* links) : a(a), b(b), team_(team), links_(links) {}

  const VerifyTree& a;
  const int64_t b;
  int32_t node = 0, depth = 0;  // where the walk stands
  int32_t status = 0;
  Chain rest;                   // the law of node's children as rejections left it, links on top of the request's stack
  double total = 1;             // of rest's weights

  SPECDEC_HD Team& team() const { return team_; }
  SPECDEC_HD int64_t token(int32_t child) const { return a.node_tokens.at(b, child); }
  SPECDEC_HD double coin(int64_t column) const { return a.test_uniform(b, column); }

  // The next test whose token is in a vocabulary; the others are skipped, as if they had not been drafted.
  SPECDEC_HD Test next(Tests& tests) const {
    while (true) {
      const Test test = tests.next(a, b);
      if (test.child < 0 || inside(test.child)) return test;
    }
  }
  SPECDEC_HD bool inside(int32_t child) const { return token(child) >= 0 && token(child) < a.widest(); }
  SPECDEC_HD void flag_outside(Tests tests) {
    for (Test t = tests.next(a, b); t.child >= 0; t = tests.next(a, b)) {
      if (!inside(t.child)) status |= kInvalidDraft;
    }
  }

  SPECDEC_HD Dist target(int32_t of) {
    const int64_t row = a.target_row ? a.target_row.at(b, of) : of;
    held_ = false;
    if (row < 0 || row >= a.target.per_request) return Dist{};
    if (a.method != Method::kGreedy) return a.target.dist(team_, -1, b, row);
    Filters greedy;
    greedy.temperature = 0;
    const Row logits = a.target.at(-1, b, row);
    const Law law = team_.law(logits, greedy);
    const bool law_of_probs = law.log_norm == law.log_norm && law.max > 0;
    return a.target.kind == Kind::kLogits || law_of_probs ? from_law(logits, law) : from_probs(logits);
  }

  // -1: one-hot
  SPECDEC_HD int64_t draft_row(int32_t child) const {
    if (!a.draft.rows) return -1;
    const int64_t row = a.draft_row ? a.draft_row.at(b, child) : a.parents.at(b, child);
    return row < 0 ? -1 : row;
  }

  // Whether two children were drawn from one law.
  SPECDEC_HD bool one_law(int32_t x, int32_t y) const {
    const int64_t row = draft_row(x);
    return row == draft_row(y) && (row >= 0 || token(x) == token(y));
  }

  // q of a child's token: 0 if that is no probability, NaN if the row is no law, and both flag the draft.
  SPECDEC_HD double draft(int32_t child) {
    const int64_t row = draft_row(child);
    if (row >= 0 && row != known_row_) {
      held_ = held_ && a.draft.stats;
      recall(row, row < a.draft.per_request ? a.draft.dist(team_, -1, b, row) : Dist{});
    }
    return draft_again(child);
  }
  // Right after draft() of a child of the same law.
  SPECDEC_HD double draft_again(int32_t child) {
    if (draft_row(child) < 0) return 1;
    if (known_.kind == Kind::kNothing || !known_.valid()) {
      status |= kInvalidRow | kInvalidDraft;
      return NAN;
    }
    const double q = draft_prob(known_.prob(token(child)));
    if (!(q > 0)) status |= kInvalidDraft;
    return q;
  }
  // The law that a child was drawn from, right after draft() or recall() of it.
  SPECDEC_HD Dist law_of(int32_t child) const { return draft_row(child) < 0 ? one_hot(token(child)) : known_; }
  SPECDEC_HD const Dist& known() const { return known_; }
  SPECDEC_HD void recall(int64_t row, const Dist& law) { known_row_ = row, known_ = law; }

  // Of what q holds without the tokens that have left, their share; exactly 0 if nothing is left.
  SPECDEC_HD double left_of(const Dist& q) {
    if (rest.n == 0 || q.kind == Kind::kOneHot) return 1;
    if (q.kind == Kind::kLogits) {
      double left = 1;
      for (int64_t i = 0; i < rest.n; ++i) left -= rest.links[i].gone < 0 ? 0 : q.prob(rest.links[i].gone);
      if (left > 0.125) return left;  // else cancellation: what is left is added up
    }
    held_ = false;
    return team_.mass(q, rest.links, rest.n);
  }

  // A law at whose node the walk stands, before any rejection; its links go on the stack from `bottom` on.
  SPECDEC_HD void stand(const Dist& p, int64_t bottom) {
    rest = Chain{p, links_ + bottom, 0};
    total = 1;
  }
  SPECDEC_HD int64_t bottom() const { return rest.links - links_; }
  SPECDEC_HD double residual(int64_t v) const { return rest.weight(v) / total; }
  SPECDEC_HD bool is_gone(int64_t v) const { return rest.is_gone(v, rest.n); }

  SPECDEC_HD void push(const Link& link) {
    team_.sync();
    if (team_.leads()) links_[bottom() + rest.n] = link;
    team_.sync();
    ++rest.n;
    held_ = false;
  }

  // rest becomes (weight * rest - s * q)+; a one-hot q keeps nothing of its token. Returns what is left, rest being normalised
  // before; where nothing is left, rest stays as it was (rounding alone gets there). NaN: p is no law.
  SPECDEC_HD double reduce(const Dist& q, double weight, double s, int64_t gone) {
    Link link = subtracting(q);
    link.m = float(weight / total), link.s = float(s), link.gone = gone;
    if (q.kind != Kind::kNothing) {
      const double known = q.kind == Kind::kOneHot && rest.p.kind == Kind::kLogits ? weight * (1 - residual(q.hot)) : 0;
      push(link);
      const double left = known > 0.125 ? known : sum_of(rest);  // a small difference of large numbers is added up
      if (has_mass(left)) return total = left;
      --rest.n;
    }
    if (rest.p.kind == Kind::kProbs && !has_mass(sum_of(Chain{rest.p}))) return NAN;  // known by its sum alone
    link.q = Dist{}, link.m = 1;
    push(link);
    return 0;
  }

  SPECDEC_HD void keep(int32_t child, const Dist& p) {
    if (team_.leads()) {
      a.tokens[b * (a.D + 1) + depth] = token(child);
      a.logprobs[b * (a.D + 1) + depth] = float(p.log_prob(token(child)));
      a.path[b * (a.D + 1) + depth + 1] = child;
    }
    ++depth;
    node = child;
  }

  // The final token, from rest or from p where it has no mass, and the padding behind it.
  SPECDEC_HD void finish() {
    const Final last = final_draw();
    if (!team_.leads()) return;
    int64_t* tokens = a.tokens + b * (a.D + 1);
    float* logprobs = a.logprobs + b * (a.D + 1);
    int32_t* path = a.path + b * (a.D + 1);
    path[0] = 0;
    tokens[depth] = last.token;
    logprobs[depth] = float(last.logprob);
    for (int64_t j = depth + 1; j <= a.D; ++j) tokens[j] = -1, logprobs[j] = 0, path[j] = -1;
    a.num_accepted[b] = depth;
    a.status[b] = status;
  }

 private:
  SPECDEC_HD double sum_of(const Chain& chain) {
    if (chain.p.kind == Kind::kOneHot) return chain.weight(chain.p.hot);
    held_ = chain.n > 0;
    return team_.sum(chain);
  }

  SPECDEC_HD Final final_draw() {
    const Dist& p = rest.p;
    if (p.kind == Kind::kOneHot) return {p.hot, 0.0};
    if (p.kind != Kind::kNothing && p.valid()) {
      Chain from = rest;  // then p itself
      while (true) {
        if (has_mass(held_ && from.n > 0 ? total : team_.sum(from))) {
          if (from.n < rest.n) status |= kEmptyResidual;
          const int64_t id = team_.draw(from, a.final_uniform(b));
          return {id, p.log_prob(id)};
        }
        if (from.n == 0) break;
        from.n = 0;
      }
    }
    status |= kInvalidRow;
    return {p.kind == Kind::kNothing ? 0 : team_.argmax_finite(p.row), NAN};
  }

  Team& team_;
  Link* links_;
  int64_t known_row_ = -1;  // a draft row
  Dist known_;              // its law
  bool held_ = false;       // the team holds the sums of `rest`
};

// From the root down: rule(walk, tests) -> the accepted child, or -1, which ends the walk; the final token is drawn from what
// is then its rest.
template <class Team, class Rule>
SPECDEC_WALK void descend(Walk<Team>& walk, const Rule& rule) {
  while (true) {
    const Dist p = walk.target(walk.node);
    walk.stand(p, 0);
    Tests tests = tests_at(walk.node, walk.depth);
    int32_t child = -1;
    if (p.kind == Kind::kOneHot) {  // q is not read: the one token that can be emitted is accepted wherever it was drafted
      Test test = tests.next(walk.a, walk.b);
      while (test.child >= 0 && walk.token(test.child) != p.hot) test = tests.next(walk.a, walk.b);
      child = test.child;
    } else if (p.kind != Kind::kNothing && p.valid()) {
      walk.flag_outside(tests);
      child = rule(walk, tests);
    }
    if (child < 0) return;
    walk.keep(child, p);
  }
}

}  // namespace specdec
