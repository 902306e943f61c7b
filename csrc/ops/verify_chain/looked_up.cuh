// SPDX-License-Identifier: Apache-2.0
// The caller's inputs that the test of a position needs, loaded while the rows of that position are still being read or
// added up. Afterwards only the stats of these rows are missing, and the test waits for no memory.
#pragma once

#include "chain_rows.cuh"

namespace specdec {

struct LookedUp {
  bool drafted = false, bonus = false;
  bool makes_p = false, makes_q = false;  // whether the stats of p, of q are still to be made
  int64_t token = -1;
  Dist p, q;               // without those stats
  Filters of_p, of_q;      // the filters for those stats
  float z_p = 0, z_q = 0;  // the token's entries
  double u = 0;

  // Whether q is one-hot, or will be once its stats are made
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

// Looks up position i; every thread that calls it gets the same result. The draft's length comes first (for dense
// drafts it needs no load). The other loads do not depend on one another, so they overlap.
SPECDEC_DEVICE LookedUp look_at(const Step& s, int64_t start, int64_t b, int64_t i) {
  const VerifyChain& a = s.a;
  const NoExecutor later;  // no stats are made here
  LookedUp r;
  const int64_t g = a.drafted(b);
  r.bonus = a.gives_bonus(b, i);
  if (i > g || r.bonus) return r;  // there is no row
  const bool inside = i < g;
  const int64_t token = inside ? a.draft_token(b, i) : -1;
  if (s.target.stats) r.of_p = a.target.sampling.at<false>(b);
  if (s.draft.stats) r.of_q = a.draft.sampling.at<false>(b);
  const bool makes_p = reduces_target(s, start, b, i);
  const bool makes_q = s.draft.stats && inside && a.draft.has_row(start, b, i);
  const Dist p = makes_p ? from_stats(a.target.at(start, b, i), RowStats{}) : a.target.dist(later, start, b, i);
  const Dist q = makes_q  ? from_stats(a.draft.of_ids(start, b, i), RowStats{})
                 : inside ? a.drawn_from(later, b, i, token)
                          : Dist{};
  r.drafted = a.is_draft(token), r.makes_p = makes_p, r.p = p;
  if (!r.drafted) return r;
  r.token = token;
  if (greedy_target(s, b, i)) return r;  // a greedy target needs no q
  r.makes_q = makes_q, r.q = q;
  return r;
}

// Loads the drafted token's entries in both rows, and the uniform of its test. Called by the thread that makes the
// test.
SPECDEC_DEVICE void look_up_token(const VerifyChain& a, int64_t b, int64_t i, LookedUp& r) {
  const auto entry = [&](const Dist& d) { return has_row(d) && r.token < d.row.V ? d.row.entry(r.token) : 0.0f; };
  if (!r.drafted) return;
  r.z_p = entry(r.p), r.z_q = r.q.row.is_listed() ? 0.0f : entry(r.q);  // by id: read once the stats are known
  r.u = a.accept_uniform(b, i);
}

}  // namespace specdec
