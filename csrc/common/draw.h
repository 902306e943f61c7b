// SPDX-License-Identifier: Apache-2.0
// The draw that ends every verification step: one token from the residual (p - q)+, or from p where there is no residual.
#pragma once

#include "view.h"

namespace specdec {

enum Status : int32_t { kInvalidRow = 1, kEmptyResidual = 2, kInvalidDraft = 4, kInvalidBonus = 8 };

SPECDEC_HD bool has_mass(double total) { return total > 0 && total < HUGE_VAL; }

// Always a token of p's vocabulary. q of kind kNothing draws from p itself.
template <class Team>
SPECDEC_HD int64_t final_token(Team& team, const Dist& p, const Dist& q, double v, int32_t& status) {
  if (p.kind == Kind::kOneHot) return p.hot;
  if (p.valid()) {
    if (q.kind != Kind::kNothing) {
      const double total = team.sum(p, q);
      if (has_mass(total)) return team.draw(p, q, v);
      if (total == total) status |= kEmptyResidual;
    }
    if (has_mass(team.sum(p, Dist{}))) return team.draw(p, Dist{}, v);
  }
  status |= kInvalidRow;
  return team.argmax_finite(p.row);
}

}  // namespace specdec
