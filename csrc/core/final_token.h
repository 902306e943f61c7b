// SPDX-License-Identifier: Apache-2.0
// The draw that ends every verification step: one token from the first candidate that has mass. That is the residual;
// where it has none, what stood there before anything was taken away; or else the target's own law.
#pragma once

#include "views.h"

namespace specdec {

enum Status : int32_t { kInvalidRow = 1, kEmptyResidual = 2, kInvalidDraft = 4, kInvalidBonus = 8 };

struct Final {
  int64_t token;   // of p's vocabulary, unless it is a bonus token that the caller gave
  double logprob;  // ln p of it; NaN if p's row is invalid. The leader alone knows it
};

// One law that the token may be drawn from, (p - q)+. Every candidate offers this:
struct PairCandidate {
  const Dist& p;
  const Dist& q;

  // The id that all mass lies on, or -1; the sum of the weights; and a draw, right after the sum.
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

// p itself, where something else had no mass: seldom.
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

// (p - q)+, then p; where q is of kind kNothing, p alone. any(f): whether f(candidate, whether others before it had no
// mass) holds for one, asked in turn.
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

// p: the target's own law, which the logprob is of. uniform() is asked for at the draw, so that nothing keeps it
// before.
template <class Executor, class Candidates, class Uniform>
SPECDEC_WALK Final final_token(Executor& executor, const Dist& p, const Candidates& candidates, const Uniform& uniform,
                               int32_t& status) {
  FinalDraw<Executor, Uniform> draw{executor, p, uniform, status};
  if (p.kind != Kind::kNothing && p.valid() && candidates.any(draw)) return draw.last;
  status |= kInvalidRow;
  return {p.kind == Kind::kNothing ? 0 : executor.argmax_finite(p.row), NAN};
}

}  // namespace specdec
