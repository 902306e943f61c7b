// SPDX-License-Identifier: Apache-2.0
// The draw that ends every verification step: one token from the residual (p - q)+, or from p where there is no
// residual.
#pragma once

#include "views.h"

namespace specdec {

enum Status : int32_t { kInvalidRow = 1, kEmptyResidual = 2, kInvalidDraft = 4, kInvalidBonus = 8 };

struct Final {
  int64_t token;   // of p's vocabulary, unless it is a bonus token that the caller gave
  double logprob;  // ln p of it; NaN if p's row is invalid
};

// q of kind kNothing draws from p itself.
template <class Executor>
SPECDEC_HD Final final_token(Executor& executor, const Dist& p, const Dist& q, double v, int32_t& status) {
  if (p.kind == Kind::kOneHot) return {p.hot, 0.0};
  if (p.valid()) {
    if (q.kind != Kind::kNothing && has_mass(executor.sum(p, q))) {
      const int64_t token = executor.draw(p, q, v);
      return {token, p.log_prob(token)};
    }
    if (has_mass(executor.sum(p, Dist{}))) {
      if (q.kind != Kind::kNothing) status |= kEmptyResidual;
      const int64_t token = executor.draw(p, Dist{}, v);
      return {token, p.log_prob(token)};
    }
  }
  status |= kInvalidRow;
  return {executor.argmax_finite(p.row), NAN};
}

}  // namespace specdec
