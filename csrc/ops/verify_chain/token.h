// SPDX-License-Identifier: Apache-2.0
// Token-level verification of one request by any rule. With kExact it is speculative sampling (Leviathan 2023, Alg. 1;
// Chen 2023, Alg. 2).
#pragma once

#include "../../rules/acceptance.h"
#include "position.h"

namespace specdec {

template <class Executor>
SPECDEC_WALK bool accepts(Executor& executor, const VerifyChain& a, int64_t b, int64_t i, Position& x) {
  if (!x.tested) return false;
  const Rule rule = a.rules[b];
  const Alpha alpha = a.rules.parameters(b);
  const int64_t d = a.draft_token(b, i);
  const double u = a.accept_uniform(b, i);
  if (replaces_target(rule)) return accept_by(executor, alpha.first, x.pi, x.subtraction, d, x.q_d, u);
  if (rule == Rule::kSynthetic) return u < a.rules.synthetic_rate(b, i);
  if (rule != Rule::kLenience) return accept_by_target(executor, rule, alpha, x.p, d, u);
  return accept(x.p.prob(d), x.q_d, alpha.first * u) ||
         (x.p.kind == Kind::kOneHot && lenient_argmax(x.p, d, alpha.first));
}

template <class Executor>
SPECDEC_WALK void verify_tokens(Executor& executor, const VerifyChain& a, int64_t b, Position& x) {
  once(executor, [&] { x.r = 1; });
  for (int64_t i = 0;; ++i) {
    look(executor, a, b, i, x);
    if (!accepts(executor, a, b, i, x)) return finish(executor, a, b, i, Stop{x, x.status});
    if (executor.leads()) emit_draft(a, b, i, x.p);
  }
}

}  // namespace specdec
