// SPDX-License-Identifier: Apache-2.0
// Token-level speculative sampling of one request (Leviathan 2023, Alg. 1; Chen 2023, Alg. 2), for any Team.
#pragma once

#include "../accept/accept.h"
#include "../common/draw.h"
#include "../common/philox.h"

namespace specdec {

// The rows of one side: logits or probabilities, with the four floats of each if whoever read them handed them over.
struct Side {
  Rows rows;
  Kind kind = Kind::kLogits;
  const float* stats = nullptr;  // [rows, 4]
  Sampling sampling;             // [B], where there are no stats
  int64_t per_request = 0;       // rows of a request, if dense
  int64_t extra = 0;             // rows of a request beyond its drafts, if ragged

  template <class Team>
  SPECDEC_HD Dist dist(Team& team, const Ints& cu_draft, int64_t b, int64_t i) const {
    const int64_t index = cu_draft ? cu_draft[b] + extra * b + i : b * per_request + i;
    const Row row = cu_draft ? rows.at(0, index) : rows.at(b, i);
    if (kind == Kind::kProbs) return from_probs(row);
    return from_law(row, stats ? law_at(stats, index) : team.law(row, sampling[b]));
  }
};

struct VerifyChain {
  int64_t B = 0, G = 0;
  Side target, draft;                // draft.rows empty: one-hot drafts
  Ints draft_tokens;                 // [B, G] or [D]
  int64_t draft_tokens_stride = 0;   // from request to request, if dense
  Ints cu_draft;                     // ragged: [B+1]
  Ints bonus_tokens;                 // [B]; the target then has no bonus row
  Ints seed, offset;                 // [B]
  const double* uniforms = nullptr;  // [B, G+1], in place of seed and offset
  int64_t* tokens = nullptr;         // [B, G+1]
  int32_t* num_accepted = nullptr;   // [B]
  float* logprobs = nullptr;         // [B, G+1]
  int32_t* status = nullptr;         // [B]

  SPECDEC_HD int64_t drafted(int64_t b) const { return cu_draft ? cu_draft[b + 1] - cu_draft[b] : G; }
  SPECDEC_HD int64_t draft_token(int64_t b, int64_t i) const {
    return cu_draft ? draft_tokens[cu_draft[b] + i] : draft_tokens.at(b * draft_tokens_stride + i * draft_tokens.stride);
  }
  SPECDEC_HD double accept_uniform(int64_t b, int64_t i) const {
    return uniforms ? uniforms[b * (G + 1) + i] : seed ? uniform(seed[b], offset[b], kDomainAccept, i) : 0.0;
  }
  SPECDEC_HD double final_uniform(int64_t b) const {
    return uniforms ? uniforms[b * (G + 1) + G] : seed ? uniform(seed[b], offset[b], kDomainFinal, 0) : 0.0;
  }
};

template <class Team>
SPECDEC_HD void verify_chain(Team& team, const VerifyChain& a, int64_t b) {
  const int64_t V = a.target.rows.V, ids = a.draft.rows && a.draft.rows.V > V ? a.draft.rows.V : V;
  const int64_t g = a.drafted(b);
  int64_t* tokens = a.tokens + b * (a.G + 1);
  float* logprobs = a.logprobs + b * (a.G + 1);
  int32_t status = 0;

  int64_t i = 0;
  Dist p, q;             // the laws at the stop: target, and the draft if it was rejected
  bool stopped = false;  // p is the law of row i
  for (; i < g && !stopped; ++i) {
    const int64_t d = a.draft_token(b, i);
    if (d < 0 || d >= ids) break;  // the draft ends here
    p = a.target.dist(team, a.cu_draft, b, i);
    if (!p.valid()) {
      stopped = true;
      break;
    }
    if (p.kind == Kind::kOneHot) {
      stopped = d != p.hot;  // a greedy target never reads q
    } else {
      const Dist drawn_from = a.draft.rows ? a.draft.dist(team, a.cu_draft, b, i) : one_hot(d);
      const double q_d = drawn_from.prob(d);
      stopped = !accept(p.prob(d), q_d, a.accept_uniform(b, i));
      if (stopped && !is_draft_prob(q_d)) status |= kInvalidDraft;
      if (stopped && drawn_from.valid()) q = drawn_from;
      if (!drawn_from.valid()) status |= kInvalidRow;
    }
    if (stopped) break;
    tokens[i] = d;
    logprobs[i] = float(p.log_prob(d));
  }

  a.num_accepted[b] = int32_t(i);
  if (i == g && a.bonus_tokens) {
    const int64_t bonus = a.bonus_tokens[b];
    if (bonus < 0 || bonus >= V) status |= kInvalidBonus;
    tokens[i] = bonus < 0 ? 0 : bonus >= V ? V - 1 : bonus;
    logprobs[i] = NAN;  // its row was not given
  } else {
    if (!stopped) p = a.target.dist(team, a.cu_draft, b, i);
    const Final last = final_token(team, p, q, a.final_uniform(b), status);
    tokens[i] = last.token;
    logprobs[i] = float(last.logprob);
  }
  for (int64_t j = i + 1; j <= a.G; ++j) tokens[j] = -1, logprobs[j] = 0;
  a.status[b] = status;
}

}  // namespace specdec
