// SPDX-License-Identifier: Apache-2.0
// Token-level speculative sampling of one request (Leviathan 2023, Alg. 1; Chen 2023, Alg. 2), for any Executor.
#pragma once

#include "../../core/accept.h"
#include "../../core/final_token.h"
#include "../../core/philox.h"
#include "../../core/side.h"
#include "../../rules/rule.h"

namespace specdec {

struct VerifyChain {
  int64_t B = 0, G = 0, D = 0;      // D: drafted tokens of all requests, if ragged
  Side target, draft;               // draft.rows empty: one-hot drafts
  Ints draft_tokens;                // [B, G] or [D]
  int64_t draft_tokens_stride = 0;  // from request to request, if dense
  Ints cu_draft;                    // ragged: [B+1]
  Ints bonus_tokens;                // [B]; the target then has no bonus row
  bool block = false;               // block verification, else token by token
  Rules rules;
  Ints seed, offset;                 // [B]
  const double* uniforms = nullptr;  // [B, G+1], in place of seed and offset
  int64_t* tokens = nullptr;         // [B, G+1]
  int32_t* num_accepted = nullptr;   // [B]
  float* logprobs = nullptr;         // [B, G+1]
  int32_t* status = nullptr;         // [B]

  // Whether anything but the exact rule, token by token, is asked of some request, and of this one
  SPECDEC_HD bool by_rule() const { return block || rules; }
  SPECDEC_HD bool by_rule(int64_t b) const { return block || rules[b] != Rule::kExact; }
  // Offsets on a device are not looked at before the launch, so they are kept inside [0, D] and [0, G] here.
  SPECDEC_HD int64_t start(int64_t b) const { return cu_draft ? clamped(cu_draft[b], D) : -1; }
  SPECDEC_HD int64_t drafted(int64_t b) const {
    return cu_draft ? clamped(clamped(cu_draft[b + 1], D) - start(b), G) : G;
  }
  SPECDEC_HD static int64_t clamped(int64_t x, int64_t most) { return x < 0 ? 0 : x > most ? most : x; }
  SPECDEC_HD int64_t draft_token(int64_t b, int64_t i) const {
    return cu_draft ? draft_tokens[start(b) + i] : draft_tokens.at(b * draft_tokens_stride + i * draft_tokens.stride);
  }
  // Whether a draft stands at position i. An id outside both vocabularies ends the draft.
  SPECDEC_HD bool has_draft(int64_t b, int64_t i) const {
    if (i >= drafted(b)) return false;
    const int64_t d = draft_token(b, i);
    return d >= 0 && (d < target.rows.V || d < draft.rows.V);
  }
  // Full acceptance where the engine sampled the bonus token itself
  SPECDEC_HD bool gives_bonus(int64_t b, int64_t i) const { return bonus_tokens && i == drafted(b); }
  SPECDEC_HD double accept_uniform(int64_t b, int64_t i) const {
    return uniforms ? given_uniform(uniforms[b * (G + 1) + i])
           : seed   ? uniform(seed[b], offset[b], kDomainAccept, i)
                    : 0.0;
  }
  SPECDEC_HD double final_uniform(int64_t b) const {
    return uniforms ? given_uniform(uniforms[b * (G + 1) + G])
           : seed   ? uniform(seed[b], offset[b], kDomainFinal, 0)
                    : 0.0;
  }
};

// What one row of the target says of the draft at its position; at a stop, the laws that the final token is drawn from.
struct DraftTest {
  bool accepted = false;
  Dist p, q;  // q of kind kNothing draws from p itself
  int32_t status = 0;

  template <class Executor>
  SPECDEC_HD Final draw(Executor& executor, double v, int32_t& all) const {
    return final_token(executor, p, PairCandidates{p, q, v}, all);
  }
};

template <class Executor>
SPECDEC_HD DraftTest test_draft(Executor& executor, const VerifyChain& a, int64_t b, int64_t i) {
  DraftTest r;
  const bool drafted = a.has_draft(b, i);
  if (!drafted && a.gives_bonus(b, i)) return r;
  r.p = a.target.dist(executor, a.start(b), b, i);
  if (!drafted || !r.p.valid()) return r;
  const int64_t d = a.draft_token(b, i);
  if (r.p.kind == Kind::kOneHot) {
    r.accepted = d == r.p.hot;  // a greedy target never reads q
    return r;
  }
  const double p_d = r.p.prob(d);
  if (p_d != p_d) return r;  // a probability row that is no law, as this entry alone tells
  const Dist drawn_from = a.draft.rows ? a.draft.dist(executor, a.start(b), b, i) : one_hot(d);
  const double q_d = drawn_from.prob(d);
  r.accepted = accept(p_d, q_d, a.accept_uniform(b, i));
  if (r.accepted) return r;
  if (!is_draft_prob(q_d)) r.status |= kInvalidDraft;
  if (drawn_from.valid())
    r.q = drawn_from;
  else
    r.status |= kInvalidRow;
  return r;
}

SPECDEC_HD void emit_draft(const VerifyChain& a, int64_t b, int64_t i, const Dist& p) {
  const int64_t d = a.draft_token(b, i);
  a.tokens[b * (a.G + 1) + i] = d;
  a.logprobs[b * (a.G + 1) + i] = float(p.log_prob(d));
}

// The final token at position i, where the walk stopped, and the padding behind it.
template <class Executor, class Stop>
SPECDEC_WALK void finish(Executor& executor, const VerifyChain& a, int64_t b, int64_t i, const Stop& stop) {
  const int64_t V = a.target.rows.V;
  int32_t status = stop.status;
  Final last;
  if (a.gives_bonus(b, i)) {
    const int64_t bonus = a.bonus_tokens[b];
    if (bonus < 0 || bonus >= V) status |= kInvalidBonus;
    last = {bonus < 0 ? 0 : bonus, NAN};  // as given: its row was not, and an id beyond V may have its use
  } else {
    last = stop.draw(executor, a.final_uniform(b), status);
  }
  if (!executor.leads()) return;
  int64_t* tokens = a.tokens + b * (a.G + 1);
  float* logprobs = a.logprobs + b * (a.G + 1);
  tokens[i] = last.token;
  logprobs[i] = float(last.logprob);
  for (int64_t j = i + 1; j <= a.G; ++j) tokens[j] = -1, logprobs[j] = 0;
  a.num_accepted[b] = int32_t(i);
  a.status[b] = status;
}

template <class Executor>
SPECDEC_HD void verify_chain(Executor& executor, const VerifyChain& a, int64_t b) {
  int64_t i = 0;
  DraftTest test = test_draft(executor, a, b, i);
  while (test.accepted) {
    emit_draft(a, b, i, test.p);
    test = test_draft(executor, a, b, ++i);
  }
  finish(executor, a, b, i, test);
}

}  // namespace specdec
