// SPDX-License-Identifier: Apache-2.0
// One position of a walk under a rule: p of the target, the distribution pi that replaces p, and q, from which the
// draft was drawn. A Position is in memory that all threads of the executor can read.
#pragma once

#include "../../core/final_token.h"
#include "../../rules/make_rule_dist.h"
#include "verify_chain.h"

namespace specdec {

struct Position {
  Dist p;  // the target's own distribution
  RuleDist pi;
  Dist q;               // subtracted after a rejection
  double q_d = 0;       // q of the drafted token
  double r = 1;         // block verification: the probability of reaching this position
  bool tested = false;  // there is a draft, and the rows that its test needs are valid
  int32_t status = 0;
  Subtraction subtraction;
  Residual rest;  // what the final token is drawn from
};

// Whether the draft has one more row after each request's last draft. The bonus token then follows pi too.
SPECDEC_HD bool scores_end(const VerifyChain& a) { return a.draft.memory && a.draft.extra == 1; }

// Whether the draft's row is used at position i
SPECDEC_HD bool reads_draft(const VerifyChain& a, int64_t b, int64_t i) {
  const Rule rule = a.rules[b];
  if (a.has_draft(b, i)) return reads_draft(rule);
  return rule != Rule::kExact && replaces_target(rule) && scores_end(a) && !a.draft.is_one_hot(a.start(b), b, i);
}

// Fills x for position i. If there is no draft at i, pi is complete afterwards.
template <class Executor>
SPECDEC_WALK void look(Executor& executor, const VerifyChain& a, int64_t b, int64_t i, Position& x) {
  const Rule rule = a.rules[b];
  const double alpha = a.rules.parameters(b).first;
  const bool drafted = a.has_draft(b, i);
  once(executor, [&] {
    x.p = x.q = Dist{}, x.pi = RuleDist{};
    x.tested = false, x.status = 0;
  });
  if (!drafted && a.gives_bonus(b, i)) return;
  executor.expect_entropy(drafted && reads_entropy(rule));
  const Dist p = a.target.dist(executor, a.start(b), b, i);
  once(executor, [&] { x.p = x.pi.dist = p; });
  if (!p.valid()) return;
  const bool reads = reads_draft(a, b, i);
  if (!drafted && !reads) return;

  const int64_t d = drafted ? a.draft_token(b, i) : -1;
  if (drafted) {
    const double p_d = p.prob(d);
    if (p_d != p_d) return;  // the probability row is invalid, and only this entry shows it
  }
  if (!reads) {
    return once(executor, [&] {
      x.tested = d < p.row.V;
      if (rule == Rule::kThresholds) x.q = one_hot(d);
    });
  }
  // If the target is greedy, the draft either is the target's token or is not. For these rules q then does not matter,
  // and is not read.
  const bool matched =
      drafted && p.kind == Kind::kOneHot && (rule == Rule::kExact || rule == Rule::kLossy || rule == Rule::kLenience);
  const Dist q = matched ? one_hot(d) : a.drawn_from(executor, b, i, d);
  if (q.kind == Kind::kNothing) return once(executor, [&] { x.status |= kInvalidDraft; });
  const double q_d = drafted ? q.prob(d) : 1;
  once(executor, [&] {
    x.q_d = q_d, x.tested = drafted && q.valid();
    if (!is_draft_prob(q_d)) x.status |= kInvalidDraft;
    if (q.valid())
      x.q = q;
    else
      x.status |= kInvalidRow;
  });
  if (!q.valid()) return;
  make_rule_dist(executor, rule, alpha, x.p, x.q, x.pi);
  if (!drafted) complete(executor, alpha, x.pi, x.subtraction);
}

// The total of (r pi - q)+ if `residual`, else of pi. Stores this distribution in x.rest for the draw.
template <class Executor>
SPECDEC_WALK double rest_mass(Executor& executor, Position& x, bool residual, double r) {
  once(executor, [&] {
    x.pi.mixture.m = residual ? float(r) : 1, x.pi.mixture.minus = residual;
    x.subtraction = subtracting(x.q);
    x.subtraction.m = float(r);
    x.rest = Residual{x.pi.dist, &x.subtraction, residual && !x.pi.mixed, x.pi.mixed ? &x.pi.mixture : nullptr};
  });
  return executor.sum(x.rest);
}

// A candidate for the final token. It is drawn from (r pi - q)+; if there is no q, or no mass is left, from pi; if that
// has no mass either, from p.
struct PositionCandidate {
  enum From { kResidual, kPi, kTarget } from;
  Position& x;

  SPECDEC_HD int64_t hot() const {
    if (from == kTarget) return hot_id(x.p);
    return x.pi.hot() ? x.pi.dist.hot : -1;
  }
  template <class Executor>
  SPECDEC_WALK double sum(Executor& executor) const {
    if (from != kTarget) return rest_mass(executor, x, from == kResidual, from == kResidual ? x.r : 1);
    once(executor, [&] { x.rest = Residual{x.p}; });
    return executor.sum(x.rest);
  }
  template <class Executor>
  SPECDEC_WALK int64_t draw(Executor& executor, double v) const {
    return executor.draw(x.rest, v);
  }
};

struct PositionCandidates {
  Position& x;

  template <class F>
  SPECDEC_WALK bool any(F& f) const {
    using C = PositionCandidate;
    const auto first = x.tested && x.q.kind != Kind::kNothing ? C::kResidual : C::kPi;
    C at{first, x};
    while (!f(at, at.from != first)) {
      if (at.from == C::kTarget) return false;
      at.from = C::From(at.from + 1);
    }
    return true;
  }
};

// The position where a walk stopped, and the status so far
struct Stop {
  Position& x;
  int32_t status;

  template <class Executor, class Uniform>
  SPECDEC_WALK Final draw(Executor& executor, const Uniform& uniform, int32_t& all) const {
    return final_token(executor, x.p, PositionCandidates{x}, uniform, all);
  }
};

}  // namespace specdec
