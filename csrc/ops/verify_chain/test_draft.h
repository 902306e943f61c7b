// SPDX-License-Identifier: Apache-2.0
// Exact verification (Leviathan 2023, Alg. 1; Chen 2023, Alg. 2) of one position by one thread, in registers. It is
// used by launches that test all positions at once, and by the CPU: for a small vocabulary, verify_tokens() (token.h)
// takes 5% more instructions. The results are those of verify_tokens() for the rule kExact.
#pragma once

#include "verify_chain.h"

namespace specdec {

// The result of testing the draft at a position; at a stop, also the distributions for the final token.
struct DraftTest {
  Dist p, q;  // the final token comes from (p - q)+; q of kind kNothing: from p
  int32_t status = 0;
  int32_t accepted = 0;  // not a bool: a GPU would also copy the padding after it

  template <class Executor, class Uniform>
  SPECDEC_HD Final draw(Executor& executor, const Uniform& uniform, int32_t& all) const {
    return final_token(executor, p, PairCandidates{p, q}, uniform, all);
  }
};

// Tests the draft at the position `at`. Each function of `at` is called only if the test needs its result.
template <class At>
SPECDEC_HD DraftTest test_draft(const At& at) {
  DraftTest r;
  const bool drafted = at.has_draft();
  if (!drafted && at.gives_bonus()) return r;
  r.p = at.target();
  if (!drafted || !r.p.valid()) return r;
  const int64_t d = at.draft_token();
  if (r.p.kind == Kind::kOneHot) {
    r.accepted = d == r.p.hot;  // a greedy target never reads q
    return r;
  }
  const double p_d = at.target_prob(r.p, d);
  if (p_d != p_d) return r;  // the probability row is invalid, and only this entry shows it
  const Dist drawn_from = at.drawn_from(d);
  const double q_d = at.draft_prob(drawn_from, d);
  r.accepted = accept(p_d, q_d, at.uniform());
  if (r.accepted) return r;
  if (!is_draft_prob(q_d)) r.status |= kInvalidDraft;
  if (drawn_from.valid())
    r.q = drawn_from;
  else
    r.status |= kInvalidRow;
  return r;
}

// A position whose rows this thread reads itself; given() returns its uniform.
template <class Executor, class Uniform>
struct PositionAtHand {
  Executor& executor;
  const VerifyChain& a;
  int64_t b, i;
  const Uniform& given;

  SPECDEC_HD bool has_draft() const { return a.has_draft(b, i); }
  SPECDEC_HD bool gives_bonus() const { return a.gives_bonus(b, i); }
  SPECDEC_HD int64_t draft_token() const { return a.draft_token(b, i); }
  SPECDEC_HD Dist target() const { return a.target.dist(executor, a.start(b), b, i); }
  SPECDEC_HD Dist drawn_from(int64_t d) const { return a.drawn_from(executor, b, i, d); }
  SPECDEC_HD double target_prob(const Dist& p, int64_t d) const { return p.prob(d); }
  SPECDEC_HD double draft_prob(const Dist& q, int64_t d) const { return q.prob(d); }
  SPECDEC_HD double uniform() const { return given(); }
};

template <class Executor, class Uniform>
SPECDEC_HD DraftTest test_draft(Executor& executor, const VerifyChain& a, int64_t b, int64_t i,
                                const Uniform& uniform) {
  return test_draft(PositionAtHand<Executor, Uniform>{executor, a, b, i, uniform});
}

template <class Executor>
SPECDEC_HD void verify_chain(Executor& executor, const VerifyChain& a, int64_t b) {
  int64_t i = 0;
  const auto uniform = [&] { return a.accept_uniform(b, i); };
  DraftTest test = test_draft(executor, a, b, i, uniform);
  while (test.accepted) {
    emit_draft(a, b, i, test.p);
    test = test_draft(executor, a, b, ++i, uniform);
  }
  finish(executor, a, b, i, test);
}

}  // namespace specdec
