// SPDX-License-Identifier: Apache-2.0
// What the test of a position asks of the caller's inputs alone, looked up while its rows are read or their laws are
// made: once these are, a test waits for no memory.
#pragma once

#include "chain_rows.cuh"

namespace specdec {

struct LookedUp {
  bool drafted = false, bonus = false;
  bool makes_p = false, makes_q = false;  // the laws that are made
  int64_t token = -1;
  Dist p, q;               // but for what those laws say
  float z_p = 0, z_q = 0;  // the token's entries
  double u = 0;

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
  SPECDEC_DEVICE void make_p(const RowStats& law) { p = from_stats(p.row, law); }
  SPECDEC_DEVICE void make_q(const RowStats& law) { q = from_stats(q.row, law); }
  SPECDEC_DEVICE double log_prob(const Dist& law) const {
    return law.log_prob(token, [&] { return z_p; });
  }
};

// Of a position that the draft reaches, for the first lane of a warp; into registers, or into shared memory where there
// are few.
SPECDEC_DEVICE void look_up(const Step& s, int64_t start, int64_t b, int64_t i, LookedUp& r) {
  const VerifyChain& a = s.a;
  const NoExecutor later;  // makes the laws
  const auto entry = [&](const Dist& d) {
    return threadIdx.x % kLanes == 0 && has_row(d) && r.token < d.row.V ? load_scalar(d.row, r.token) : 0.0f;
  };
  r = {};
  r.drafted = a.has_draft(b, i), r.bonus = !r.drafted && a.gives_bonus(b, i);
  if (r.bonus) return;
  r.makes_p = reduces_target(s, start, b, i);
  r.p = r.makes_p ? from_stats(a.target.at(start, b, i), {}) : a.target.dist(later, start, b, i);
  if (!r.drafted) return;
  r.token = a.draft_token(b, i);
  if (greedy_target(s, b, i)) return;  // never asks for q
  r.u = a.accept_uniform(b, i);
  r.makes_q = reduces_draft(s, start, b, i, true);
  r.q = r.makes_q ? from_stats(a.draft.at(start, b, i), {}) : a.drawn_from(later, b, i, r.token);
  r.z_p = entry(r.p), r.z_q = entry(r.q);
}

}  // namespace specdec
