// SPDX-License-Identifier: Apache-2.0
// The draw that ends a verification step: one token from the first candidate distribution that has mass. The candidates
// are, in order: the residual; the distribution before q was subtracted; the target's own distribution p, if a rule
// replaced it.
#pragma once

#include "arguments.h"
#include "status.h"

namespace specdec {

struct Final {
  int64_t token;   // an id of p's vocabulary, or a bonus token that the caller gave
  double logprob;  // ln p(token), NaN if p's row is invalid; set only where executor.leads()
};

// The candidate (p - q)+, not normalised. Every candidate has these three members.
struct PairCandidate {
  const Dist& p;
  const Dist& q;

  // hot(): the id that has all mass, or -1. sum(): the total weight. draw(): one id, for a uniform v; call it directly
  // after sum().
  SPECDEC_HD int64_t hot() const { return hot_id(p); }
  template <class Executor>
  SPECDEC_WALK double sum(Executor& executor) const {
    return executor.sum(p, q);
  }
  template <class Executor>
  SPECDEC_WALK int64_t draw(Executor& executor, double v) const {
    return executor.draw(p, q, v);
  }
};

// The candidate p. It is rarely used: only after a candidate without mass.
struct TargetCandidate {
  const Dist& p;

  SPECDEC_HD int64_t hot() const { return hot_id(p); }
  template <class Executor>
  SPECDEC_WALK double sum(Executor& executor) const {
    return executor.sum(p);
  }
  template <class Executor>
  SPECDEC_WALK int64_t draw(Executor& executor, double v) const {
    return executor.draw(p, v);
  }
};

template <class Executor, class Candidate>
SPECDEC_WALK bool has_mass(Executor& executor, const Candidate& from) {
  return from.hot() >= 0 || has_mass(from.sum(executor));
}

// The candidates (p - q)+, then p; only p if q.kind is kNothing. any(f) calls f(candidate, later) in turn until one
// call returns true. `later` is true for every candidate after the first: those before it had no mass.
struct PairCandidates {
  const Dist& p;
  const Dist& q;

  template <class F>
  SPECDEC_WALK bool any(F& f) const {
    return f(PairCandidate{p, q}, false) || (q.kind != Kind::kNothing && f(TargetCandidate{p}, true));
  }
};

template <class Executor, class Uniform>
struct FinalDraw {
  Executor& executor;
  const Dist& p;
  const Uniform& uniform;
  int32_t& status;
  Final last{};

  template <class Candidate>
  SPECDEC_WALK bool operator()(const Candidate& from, bool later) {
    if (!has_mass(executor, from)) return false;
    if (later) status |= kEmptyResidual;
    const int64_t token = from.hot() >= 0 ? from.hot() : from.draw(executor, uniform());
    last = {token, executor.leads() ? p.log_prob(token) : 0};
    return true;
  }
};

// Draws the final token. p is the target's own distribution; the logprob is ln p(token). uniform() is called only at
// the draw, so that its value does not occupy a register until then.
template <class Executor, class Candidates, class Uniform>
SPECDEC_WALK Final final_token(Executor& executor, const Dist& p, const Candidates& candidates, const Uniform& uniform,
                               int32_t& status) {
  FinalDraw<Executor, Uniform> draw{executor, p, uniform, status};
  if (p.kind != Kind::kNothing && p.valid() && candidates.any(draw)) return draw.last;
  status |= kInvalidRow;
  return {p.kind == Kind::kNothing ? 0 : executor.argmax_finite(p.row), NAN};
}

}  // namespace specdec
