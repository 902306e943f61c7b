// SPDX-License-Identifier: Apache-2.0
// The walk down a tree. It has the residual at the current node, and writes the accepted tokens and the final token.
#pragma once

#include "draft_dists.h"
#include "node_dist.h"

namespace specdec {

// The memory of a walk that all threads of its executor can read
struct WalkRoom {
  Subtraction* subtractions;  // [most_subtractions()]
  NodeDist* dists;            // [N], if rules are given
};

// Executors without kMixes serve only requests without a rule. Executors without kMakesRuleDists serve only requests
// with a rule, whose NodeDists another launch has made. These constants keep code that is never run out of a kernel.
template <class Executor>
class Walk : public DraftDists<Executor> {
 public:
  using Drafts = DraftDists<Executor>;
  using Drafts::a, Drafts::b, Drafts::rest, Drafts::status, Drafts::token, Drafts::look_up, Drafts::recall;
  using Drafts::dist_of, Drafts::draft_row;

  SPECDEC_HD Walk(Executor& executor, const VerifyTree& a, int64_t b, const WalkRoom& room)
      : Drafts(executor, a, b), room_(room) {}

  int32_t node = 0, depth = 0;  // the current node
  double total = 1;             // the total weight of `rest`

  SPECDEC_HD Executor& executor() const { return executor_; }
  SPECDEC_HD double test_uniform(int64_t column) const { return a.test_uniform(b, column); }

  // The next test whose token is in the target's or the draft's vocabulary. Tests of other tokens are skipped, as if
  // they had not been drafted.
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
  // Sets kInvalidDraft if a token to be tested is in neither vocabulary.
  SPECDEC_HD void flag_outside(Tests tests) {
    for (Test t = tests.next(a, b); t.child >= 0; t = tests.next(a, b)) {
      if (!inside(t.child)) status |= kInvalidDraft;
    }
  }

  // The target's distribution at a node; of kind kNothing if the index of its row is out of range
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

  // Sets `rest` to p, before any rejection. Its subtractions are put on the stack from `bottom` on.
  SPECDEC_HD void enter_node(const Dist& p, int64_t bottom) {
    rest = Residual{p, room_.subtractions + bottom, 0};
    total = 1;
  }
  // Moves the walk to a node. Sets `rest` to p, or to pi if the request's rule makes one. Its subtractions are put on
  // the stack from `bottom` on.
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
  // Moves the walk back to a node, with the `rest` and `total` that were saved there.
  SPECDEC_HD void come_back(int32_t at, const Residual& left, double total_left) {
    rest = left, total = total_left;
    if constexpr (Executor::kMixes) of_ = by_rule() ? &room_.dists[at] : nullptr;
  }
  // Completes pi at the current node (RuleDist::open). Returns whether it was open. Called before the first rejection,
  // or earlier if a test needs it.
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
  // Fills x, the distributions of a node: p, the q that the first child in `tests` was drawn from, and pi if both are
  // valid.
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

  // The target's own distribution p, even if pi replaces it
  SPECDEC_HD Dist own() const {
    if constexpr (Executor::kMixes) {
      if (of_) return of_->p;  // not by reference, which would put the walk on the stack of a GPU thread
    }
    return rest.p;
  }
  // Whether rest.p.hot has all mass
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

  // Rejects a token: `rest` is normalised and becomes (weight * rest - s * q)+. A one-hot q removes its token entirely.
  // Returns the mass that remains. If this is less than 2^-126, `rest` stays as it was, and 0 is returned; rounding
  // aside, the probability of this case is at most 2^-126. Returns NaN if p is invalid.
  SPECDEC_HD double reduce(const Dist& q, double weight, double s, int64_t removed) {
    complete_pi();
    Subtraction subtraction = subtracting(q);
    subtraction.m = float(weight / total), subtraction.s = float(s), subtraction.removed = removed;
    if (q.kind != Kind::kNothing) {
      const double known =
          q.kind == Kind::kOneHot && rest.p.kind == Kind::kLogits && !rest.mixture ? weight * (1 - residual(q.hot)) : 0;
      push(subtraction);
      // A small difference would cancel, so the rest is summed instead.
      const double left = known > 0.125 ? known : sum_of(rest);
      if (left >= FLT_MIN && has_mass(left)) return total = left;
      --rest.n;
    }
    // Only the sum shows whether a probability row is invalid.
    if (own().kind == Kind::kProbs && !has_mass(sum_of(Residual{own()}))) return NAN;
    subtraction.q = Dist{}, subtraction.m = 1;
    push(subtraction);
    return 0;
  }

  // Emits an accepted child and moves to it. p: the target's own distribution, which gives the logprob.
  SPECDEC_HD void emit(int32_t child, const Dist& p) {
    if (executor_.leads()) {
      a.tokens.put(b * (a.D + 1) + depth, token(child));
      a.logprobs[b * (a.D + 1) + depth] = float(p.log_prob(token(child)));
      a.path[b * (a.D + 1) + depth + 1] = child;
    }
    ++depth;
    node = child;
  }

  // Draws and writes the final token, and the padding after it. The token is drawn from `rest`; if that has no mass,
  // from `rest` before any rejection; if that has none either, from p.
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

  // The candidates for the final token (core/final_token.h): `rest`; `rest` before any rejection; then p, if the
  // request has a rule.
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
  NodeDist* of_ = nullptr;  // of the current node, if the request has a rule
};

// Walks from the root down. rule(walk, tests) returns the accepted child, or -1 to end the walk. Walk::finish() then
// draws the final token.
template <class Executor, class Rule>
SPECDEC_WALK void descend(Walk<Executor>& walk, const Rule& rule) {
  while (true) {
    Tests tests = tests_at(walk.node, walk.depth);
    walk.arrive(walk.node, tests, 0);
    int32_t child = -1;
    if (walk.certain()) {  // only one token is possible; it is accepted if it was drafted
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
