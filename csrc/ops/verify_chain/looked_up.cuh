// SPDX-License-Identifier: Apache-2.0
// What the test of a position asks of the caller's inputs alone, looked up while its rows are still being read: but for
// the laws that are made of those, a test then waits for no memory.
#pragma once

#include "chain_rows.cuh"

namespace specdec {

struct LookedUp {
  bool beyond;  // the draft ends before
  bool drafted = false, bonus = false;
  bool makes_p = false, makes_q = false;  // the laws that are made
  int64_t token = -1;
  Dist p, q;               // but for what those laws say
  Filters of_p, of_q;      // under which they are made
  float z_p = 0, z_q = 0;  // the token's entries
  double u = 0;

  // Whether the draft's law is all on one id, or will be once it is made
  SPECDEC_DEVICE bool one_hot() const { return q.kind == Kind::kOneHot || (makes_q && of_q.greedy()); }
  SPECDEC_DEVICE bool has_draft() const { return drafted; }
  SPECDEC_DEVICE bool gives_bonus() const { return bonus; }
  SPECDEC_DEVICE int64_t draft_token() const { return token; }
  SPECDEC_DEVICE Dist target() const { return p; }
  SPECDEC_DEVICE Dist drawn_from(int64_t) const { return q; }
  SPECDEC_DEVICE double target_prob(const Dist& law, int64_t d) const {
    return law.prob(d, [&] { return z_p; });
  }
  SPECDEC_DEVICE double draft_prob(const Dist& law, int64_t d) const {
    return law.prob(d, [&] { return z_q; });
  }
  SPECDEC_DEVICE double uniform() const { return u; }
  SPECDEC_DEVICE double log_prob(const Dist& law) const {
    return law.log_prob(token, [&] { return z_p; });
  }
};

// For all lanes of a warp
SPECDEC_DEVICE LookedUp look_up(const Step& s, int64_t start, int64_t b, int64_t i) {
  const VerifyChain& a = s.a;
  const NoExecutor later;  // makes the laws
  LookedUp r;
  const auto entry = [&](const Dist& d) {  // for the lane that makes the test
    return threadIdx.x % kLanes == 0 && has_row(d) && r.token < d.row.V ? d.row.entry(r.token) : 0.0f;
  };
  r.beyond = __any_sync(kFullWarp, ends_before(a, b, i, int(threadIdx.x) % kLanes, kLanes));
  if (r.beyond) return r;
  r.drafted = a.has_draft(b, i), r.bonus = !r.drafted && a.gives_bonus(b, i);
  if (r.bonus) return r;
  r.p = a.target.dist(later, start, b, i);
  r.makes_p = reduces_target(s, start, b, i);
  if (r.makes_p) r.of_p = a.target.sampling.at<false>(b);
  if (!r.drafted) return r;
  r.token = a.draft_token(b, i);
  if (greedy_target(s, b, i)) return r;  // never asks for q
  r.q = a.drawn_from(later, b, i, r.token);
  r.makes_q = reduces_draft(s, start, b, i, true);
  if (r.makes_q) r.of_q = a.draft.sampling.at<false>(b);
  r.z_p = entry(r.p), r.z_q = entry(r.q);
  r.u = a.accept_uniform(b, i);
  return r;
}

}  // namespace specdec
