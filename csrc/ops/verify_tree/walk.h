// SPDX-License-Identifier: Apache-2.0
// The walk down a tree: what it has emitted, the residual at its current node, and the final token.
#pragma once

#include "draft_dists.h"
#include "node_dist.h"

namespace specdec {

// What a walk keeps in its executor's memory
struct WalkRoom {
  Subtraction* subtractions;  // [most_subtractions()]
  NodeDist* dists;            // [N], if rules are given
};

// With an executor without kMixes, all walks are without a rule; with one without kMakesRuleDists, all are with one. So
// a kernel has no code that its walks never run.
template <class Executor>
class Walk : public DraftDists<Executor> {
 public:
  using Drafts = DraftDists<Executor>;
  using Drafts::a, Drafts::b, Drafts::rest, Drafts::status, Drafts::token, Drafts::look_up, Drafts::recall;
  using Drafts::dist_of, Drafts::draft_row;

  SPECDEC_HD Walk(Executor& executor, const VerifyTree& a, int64_t b, const WalkRoom& room)
      : Drafts(executor, a, b), room_(room) {}

  int32_t node = 0, depth = 0;  // the current node
  double total = 1;             // the total weight of rest

  SPECDEC_HD Executor& executor() const { return executor_; }
  SPECDEC_HD double test_uniform(int64_t column) const { return a.test_uniform(b, column); }

  // The next test whose token is in a vocabulary. Other tests are skipped, as if they had not been drafted.
  SPECDEC_HD Test next(Tests& tests) const {
    while (true) {
      const Test test = tests.next(a, b);
      if (test.child < 0 || inside(test.child)) return test;
    }
  }
  SPECDEC_HD bool inside(int32_t child) const {
    const int64_t V = a.target.memory.V, end = a.draft.ids_end();
    return token(child) >= 0 && token(child) < (V > end ? V : end);
  }
  SPECDEC_HD void flag_outside(Tests tests) {
    for (Test t = tests.next(a, b); t.child >= 0; t = tests.next(a, b)) {
      if (!inside(t.child)) status |= kInvalidDraft;
    }
  }

  SPECDEC_HD Dist target(int32_t of) {
    const int64_t row = a.target_row ? a.target_row.at(b, of) : of;
    held_ = false;
    if (row < 0 || row >= a.target.per_request) return Dist{};
    if (a.method != Method::kGreedy) return a.target.dist(executor_, -1, b, row, of, b * a.N + of);
    Filters greedy;
    greedy.temperature = 0;
    const Row logits = a.target.at(-1, b, row, of, b * a.N + of);
    const RowStats stats = executor_.stats(logits, greedy);
    const bool probs_are_valid = stats.log_norm == stats.log_norm && stats.max > 0;
    return a.target.kind == Kind::kLogits || probs_are_valid ? from_stats(logits, stats) : from_probs(logits);
  }

  // Starts rest at p, before any rejection. Its subtractions go on the stack from `bottom` on.
  SPECDEC_HD void enter_node(const Dist& p, int64_t bottom) {
    rest = Residual{p, room_.subtractions + bottom, 0};
    total = 1;
  }
  // Moves the walk to a node. Starts rest at p, or at pi if the request's rule makes one; its subtractions go on the
  // stack from `bottom` on.
  SPECDEC_HD void arrive(int32_t at, const Tests& tests, int64_t bottom) {
    if constexpr (Executor::kMixes) {
      if (by_rule()) {
        if constexpr (Executor::kMakesRuleDists) make_dist_of(at, tests, room_.dists[at]);
        held_ = false;
        of_ = &room_.dists[at];
        enter_node(of_->pi.dist, bottom);
        enter_at_pi();
        if (of_->row >= 0) recall(of_->row, at, of_->q);
        return;
      }
    }
    enter_node(target(at), bottom);
  }
  // Moves the walk back to a node, with the rest that it left there.
  SPECDEC_HD void come_back(int32_t at, const Residual& left, double total_left) {
    rest = left, total = total_left;
    if constexpr (Executor::kMixes) of_ = by_rule() ? &room_.dists[at] : nullptr;
  }
  // Completes what is open of pi at the current node; returns whether there was anything. Called before any rejection,
  // and when a test needs it.
  SPECDEC_HD bool complete_pi() {
    if constexpr (Executor::kMixes && Executor::kMakesRuleDists) {
      if (!of_ || !of_->pi.open) return false;
      complete(executor_, a.rules.parameters(b).first, of_->pi, of_->subtraction);
      held_ = false;
      enter_at_pi();
      return true;
    }
    return false;
  }

  SPECDEC_HD bool by_rule() const {
    if constexpr (!Executor::kMakesRuleDists) return true;
    return Executor::kMixes && a.by_rule(b);
  }
  // Fills x, which is in the executor's memory, for a node whose children are tested in the order of `tests`: p, the q
  // that the first of them was drawn from, and pi if both are valid.
  SPECDEC_HD void make_dist_of(int32_t at, Tests tests, NodeDist& x) {
    const Rule rule = a.rule(b);
    const Dist p = target(at);
    const bool certain = p.kind == Kind::kOneHot && rule == Rule::kLossy;
    const int32_t first = p.kind != Kind::kNothing && p.valid() && !certain ? next(tests).child : -1;
    if (first >= 0) look_up(first);
    const Dist q = first >= 0 ? dist_of(first) : Dist{};
    const int64_t row = first >= 0 ? draft_row(first) : -1;
    once(executor_, [&] {
      x.p = p, x.q = q, x.row = row, x.pi = RuleDist{};
      x.pi.dist = p;
    });
    if (!replaces_target(rule) || first < 0 || !is_valid(p) || !is_valid(q)) return;
    make_rule_dist(executor_, rule, a.rules.parameters(b).first, x.p, x.q, x.pi);
  }

  // The target's own distribution, whatever replaces it
  SPECDEC_HD Dist own() const {
    if constexpr (Executor::kMixes) {
      if (of_) return of_->p;  // not by reference: that would put the walk on the stack of a GPU thread
    }
    return rest.p;
  }
  // Whether all mass lies on rest.p.hot
  SPECDEC_HD bool certain() const { return rest.p.kind == Kind::kOneHot && !rest.mixture; }
  SPECDEC_HD bool readable() const { return own().kind != Kind::kNothing && own().valid(); }
  SPECDEC_HD int64_t bottom() const { return rest.subtractions - room_.subtractions; }
  SPECDEC_HD double residual(int64_t v) const { return rest.weight(v) / total; }
  SPECDEC_HD bool is_removed(int64_t v) const { return rest.is_removed(v, rest.n); }

  SPECDEC_HD void push(const Subtraction& subtraction) {
    executor_.sync();
    if (executor_.keeps()) room_.subtractions[bottom() + rest.n] = subtraction;
    executor_.sync();
    ++rest.n;
    held_ = false;
  }

  // rest becomes (weight * rest - s * q)+; a one-hot q takes all of its token. Returns the mass that is left of a
  // normalised rest. If that is 0 or less than 2^-126, rest stays as it was, and 0 is returned; but for rounding, the
  // probability of getting there is at most 2^-126. Returns NaN if p is invalid.
  SPECDEC_HD double reduce(const Dist& q, double weight, double s, int64_t removed) {
    complete_pi();
    Subtraction subtraction = subtracting(q);
    subtraction.m = float(weight / total), subtraction.s = float(s), subtraction.removed = removed;
    if (q.kind != Kind::kNothing) {
      const double known =
          q.kind == Kind::kOneHot && rest.p.kind == Kind::kLogits && !rest.mixture ? weight * (1 - residual(q.hot)) : 0;
      push(subtraction);
      const double left = known > 0.125 ? known : sum_of(rest);  // a small difference is added up instead
      if (left >= FLT_MIN && has_mass(left)) return total = left;
      --rest.n;
    }
    if (own().kind == Kind::kProbs && !has_mass(sum_of(Residual{own()}))) return NAN;  // only the sum shows this
    subtraction.q = Dist{}, subtraction.m = 1;
    push(subtraction);
    return 0;
  }

  // p: the target's own distribution
  SPECDEC_HD void emit(int32_t child, const Dist& p) {
    if (executor_.leads()) {
      a.tokens.put(b * (a.D + 1) + depth, token(child));
      a.logprobs[b * (a.D + 1) + depth] = float(p.log_prob(token(child)));
      a.path[b * (a.D + 1) + depth + 1] = child;
    }
    ++depth;
    node = child;
  }

  // Writes the final token, and the padding after it. The token is drawn from rest; if that has no mass, from what it
  // was before rejections; or else from p.
  SPECDEC_HD void finish() {
    complete_pi();
    put_final(final_token(executor_, own(), RestCandidates{*this}, [&] { return a.final_uniform(b); }, status));
  }
  SPECDEC_HD void put_final(const Final& last) {
    if (!executor_.leads()) return;
    const int64_t first = b * (a.D + 1);
    a.path[first] = 0;
    a.tokens.put(first + depth, last.token);
    a.logprobs[first + depth] = float(last.logprob);
    for (int64_t j = first + depth + 1; j <= first + a.D; ++j) a.tokens.put(j, -1), a.logprobs[j] = 0, a.path[j] = -1;
    a.num_accepted[b] = depth;
    a.status[b] = status;
  }

 private:
  SPECDEC_HD bool is_valid(const Dist& d) const {
    return d.kind == Kind::kProbs ? executor_.largest_prob(d) > 0 : d.kind != Kind::kNothing && d.valid();
  }

  SPECDEC_HD void enter_at_pi() { rest.mixture = of_->pi.mixed ? &of_->pi.mixture : nullptr; }

  SPECDEC_HD double sum_of(const Residual& residual) {
    if (residual.p.kind == Kind::kOneHot && !residual.mixture) return residual.weight(residual.p.hot);
    held_ = residual.n > 0;
    return executor_.sum(residual);
  }

  // What the final token may be drawn from: rest; rest before rejections; and p, if that was pi.
  struct RestCandidate {
    const Walk& walk;
    const Residual& from;

    SPECDEC_HD int64_t hot() const { return from.p.kind == Kind::kOneHot && !from.mixture ? from.p.hot : -1; }
    SPECDEC_HD double sum(Executor& executor) const {
      return walk.held_ && from.n > 0 ? walk.total : executor.sum(from);
    }
    SPECDEC_HD int64_t draw(Executor& executor, double v) const { return executor.draw(from, v); }
  };
  struct RestCandidates {
    const Walk& walk;

    template <class F>
    SPECDEC_HD bool any(F& f) const {
      Residual from = walk.rest;
      bool last = !walk.by_rule(), later = false;
      while (!f(RestCandidate{walk, from}, later)) {
        if (from.n == 0 && last) return false;
        later = true;
        if (from.n > 0)
          from.n = 0;
        else
          from = Residual{walk.own()}, last = true;
      }
      return true;
    }
  };

  using Drafts::executor_, Drafts::held_;

  const WalkRoom room_;
  NodeDist* of_ = nullptr;  // at the current node, for a request with a rule
};

// Walks from the root down. rule(walk, tests) returns the accepted child, or -1 to end the walk. The final token is
// then drawn from the rest.
template <class Executor, class Rule>
SPECDEC_WALK void descend(Walk<Executor>& walk, const Rule& rule) {
  while (true) {
    Tests tests = tests_at(walk.node, walk.depth);
    walk.arrive(walk.node, tests, 0);
    int32_t child = -1;
    if (walk.certain()) {  // the only possible token is accepted if it was drafted
      Test test = tests.next(walk.a, walk.b);
      while (test.child >= 0 && walk.token(test.child) != walk.rest.p.hot) test = tests.next(walk.a, walk.b);
      child = test.child;
    } else if (walk.readable()) {
      walk.flag_outside(tests);
      child = rule(walk, tests);
    }
    if (child < 0) return;
    walk.emit(child, walk.own());
  }
}

}  // namespace specdec
