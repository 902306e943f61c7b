// SPDX-License-Identifier: Apache-2.0
// One position of a walk by a rule: the law that stands for the target's, and the one that the draft was drawn from. It lies in
// memory that the whole team sees.
#pragma once

#include "../../core/final_token.h"
#include "../../rules/make_rule_dist.h"
#include "verify_chain.h"

namespace specdec {

struct Place {
  Dist p;               // the target's own
  Pi pi;
  Dist q;               // what a rejection takes away
  double q_d = 0;       // of the draft
  double r = 1;         // block verification: the chance to come at least here
  bool tested = false;  // there is a draft, and the rows are laws that can judge it
  int32_t status = 0;
  Link link;
  Chain rest;           // of what the final token is drawn
};

// The draft's rows come with one more at the end of each request's draft, so that the bonus token follows pi there too.
SPECDEC_HD bool scores_end(const VerifyChain& a) { return a.draft.rows && a.draft.extra == 1; }

// Whether the draft's row has a say at position i.
SPECDEC_HD bool reads_draft(const VerifyChain& a, int64_t b, int64_t i) {
  const Rule rule = a.rules[b];
  return a.has_draft(b, i) ? reads_draft(rule) : rule != Rule::kExact && replaces_target(rule) && scores_end(a);
}

// Looks at position i. pi is complete where there is no draft.
template <class Team>
SPECDEC_WALK void look(Team& team, const VerifyChain& a, int64_t b, int64_t i, Place& x) {
  const Rule rule = a.rules[b];
  const double alpha = a.rules.parameters(b).first;
  const bool drafted = a.has_draft(b, i);
  once(team, [&] {
    x.p = x.q = Dist{}, x.pi = Pi{};
    x.tested = false, x.status = 0;
  });
  if (!drafted && a.gives_bonus(b, i)) return;
  team.expect_entropy(drafted && reads_entropy(rule));
  const Dist p = a.target.dist(team, a.start(b), b, i);
  once(team, [&] { x.p = x.pi.law = p; });
  if (!p.valid()) return;
  const bool reads = reads_draft(a, b, i);
  if (!drafted && !reads) return;

  const int64_t d = drafted ? a.draft_token(b, i) : -1;
  if (drafted) {
    const double p_d = p.prob(d);
    if (p_d != p_d) return;  // a probability row that is no law, as this entry alone tells
  }
  if (!reads) {
    return once(team, [&] {
      x.tested = d < p.row.V;
      if (rule == Rule::kThresholds) x.q = one_hot(d);
    });
  }
  // Where the target is greedy the draft is its one token or is not, whatever it was drawn from, unless the rule says more.
  const bool matched = drafted && p.kind == Kind::kOneHot && (rule == Rule::kExact || rule == Rule::kLossy || rule == Rule::kLenience);
  const Dist q = !matched && a.draft.rows ? a.draft.dist(team, a.start(b), b, i) : one_hot(d);
  const double q_d = drafted ? q.prob(d) : 1;
  once(team, [&] {
    x.q_d = q_d, x.tested = drafted && q.valid();
    if (!is_draft_prob(q_d)) x.status |= kInvalidDraft;
    if (q.valid())
      x.q = q;
    else
      x.status |= kInvalidRow;
  });
  if (!q.valid()) return;
  make_law(team, rule, alpha, x.p, x.q, x.pi);
  if (!drafted) complete(team, alpha, x.pi, x.link);
}

// (r pi - q)+ if `residual`, else pi
template <class Team>
SPECDEC_WALK double rest_mass(Team& team, Place& x, bool residual, double r) {
  once(team, [&] {
    x.pi.blend.m = residual ? float(r) : 1, x.pi.blend.minus = residual;
    x.link = subtracting(x.q);
    x.link.m = float(r);
    x.rest = Chain{x.pi.law, &x.link, residual && !x.pi.blended, x.pi.blended ? &x.pi.blend : nullptr};
  });
  return team.sum(x.rest);
}

// The final token of a step: after a tested draft from (r pi - q)+; from pi where nothing is to be taken away or nothing is left; or
// else from p. The logprob is the target's.
template <class Team>
SPECDEC_WALK Final final_token(Team& team, Place& x, double v, int32_t& status) {
  const Dist p = x.p;
  if (x.pi.hot()) return {x.pi.law.hot, p.log_prob(x.pi.law.hot)};
  int32_t empty = 0;
  if (p.valid()) {
    bool found = x.tested && x.q.kind != Kind::kNothing;
    if (found && !(found = has_mass(rest_mass(team, x, true, x.r)))) empty = kEmptyResidual;
    if (!found && !(found = has_mass(rest_mass(team, x, false, 1)))) empty = kEmptyResidual;
    if (!found) {
      if (p.kind != Kind::kOneHot) {
        once(team, [&] { x.rest = Chain{p}; });
        found = has_mass(team.sum(x.rest));
      } else {
        status |= empty;
        return {p.hot, 0.0};
      }
    }
    if (found) {
      const int64_t token = team.draw(x.rest, v);
      status |= empty;
      return {token, p.log_prob(token)};
    }
  }
  status |= kInvalidRow;
  return {team.argmax_finite(p.row), NAN};
}

// Where a walk stopped
struct Stop {
  Place& x;
  int32_t status;

  template <class Team>
  SPECDEC_WALK Final draw(Team& team, double v, int32_t& all) const { return final_token(team, x, v, all); }
};

}  // namespace specdec
