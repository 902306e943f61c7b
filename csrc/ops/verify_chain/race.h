// SPDX-License-Identifier: Apache-2.0
// Verification of one request by the race (core/race.h): the tokens are those of plain decoding by the race with the
// same seed, whatever was drafted. No draft row is read.
#pragma once

#include "../../core/race.h"
#include "verify_chain.h"

namespace specdec {

// The winner of a race, for finish() to write in place of a drawn token
struct Won {
  Final token;
  int32_t status;

  template <class Executor, class Uniform>
  SPECDEC_WALK Final draw(Executor&, const Uniform&, int32_t&) const {
    return token;
  }
};

template <class Executor>
SPECDEC_WALK void verify_by_race(Executor& executor, const VerifyChain& a, int64_t b) {
  for (int64_t i = 0;; ++i) {
    const bool drafted = a.has_draft(b, i);
    Won y{{0, 0}, 0};
    if (!drafted && a.gives_bonus(b, i)) return finish(executor, a, b, i, y);
    y.token = winner(executor, a.target.dist(executor, a.start(b), b, i), a.noise(b, i), y.status);
    if (!drafted || y.status || a.draft_token(b, i) != y.token.token) return finish(executor, a, b, i, y);
    if (executor.leads()) put_draft(a, b, i, y.token.token, float(y.token.logprob));
  }
}

}  // namespace specdec
