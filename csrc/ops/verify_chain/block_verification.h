// SPDX-License-Identifier: Apache-2.0
// Block verification of one request (Sun et al. 2024, "Block Verification Accelerates Speculative Decoding"), with any
// distribution pi in place of the target's:
//   r_0 = 1
//   r_i = min(1, r_(i-1) pi_(i-1)(d_i) / q_(i-1)(d_i))
//   s_i = sum (r_i pi_i - q_i)+
//   h_i = s_i / (s_i + 1 - r_i), but h_g = r_g
//   tau = the largest i with eta_i < h_i, or 0
// Here d_i is the i-th of g drafts, pi_i and q_i are the distributions after i drafts, and eta_i is a uniform. The
// final token is drawn from pi_g if tau is g, else from norm((r_tau pi_tau - q_tau)+). Given the first i drafts, tau
// reaches i with probability r_i. So nothing after the first r_i = 0 is read. If r_i = 1, h_i is 1 and s_i is not
// computed.
#pragma once

#include "position.h"

namespace specdec {

// r of the next position; 0 if there is none
template <class Executor>
SPECDEC_WALK double next_r(Executor& executor, const VerifyChain& a, int64_t b, int64_t i, Position& x) {
  if (!x.tested || !is_draft_prob(x.q_d)) return 0;
  const int64_t d = a.draft_token(b, i);
  const double q_d = draft_prob(x.q_d), enough = q_d / x.r;
  if (!(x.pi.prob(d) >= enough)) complete(executor, a.rules.parameters(b).first, x.pi, x.subtraction);
  const double pi_d = x.pi.prob(d);
  return pi_d >= enough ? 1 : pi_d > 0 ? x.r * pi_d / q_d : 0;
}

// h of a position with r > 0
template <class Executor>
SPECDEC_WALK double chance_to_stop(Executor& executor, const VerifyChain& a, int64_t b, Position& x) {
  if (!x.tested || x.r == 1) return x.r;
  complete(executor, a.rules.parameters(b).first, x.pi, x.subtraction);
  double s;
  if (x.pi.hot()) {
    s = x.r - draft_prob(x.q.prob(x.pi.dist.hot));
    if (s < 0) s = 0;
  } else {
    s = rest_mass(executor, x, true, x.r);
  }
  return s == s ? s / (s + 1 - x.r) : x.r;  // NaN: a row is invalid, and nothing is subtracted
}

// positions: [G + 1]
template <class Executor>
SPECDEC_WALK void verify_block(Executor& executor, const VerifyChain& a, int64_t b, Position* positions) {
  int64_t i = 0;
  int32_t status = 0;
  once(executor, [&] { positions[0].r = 1; });
  while (true) {
    look(executor, a, b, i, positions[i]);
    status |= positions[i].status;
    const double r = next_r(executor, a, b, i, positions[i]);
    if (!(r > 0)) break;
    ++i;
    once(executor, [&] { positions[i].r = r; });
  }
  while (i > 0 && !(a.accept_uniform(b, i - 1) < chance_to_stop(executor, a, b, positions[i]))) --i;
  if (executor.leads()) {
    for (int64_t j = 0; j < i; ++j) emit_draft(a, b, j, positions[j].p);
  }
  complete(executor, a.rules.parameters(b).first, positions[i].pi, positions[i].subtraction);
  finish(executor, a, b, i, Stop{positions[i], status});
}

}  // namespace specdec
