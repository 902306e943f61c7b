// SPDX-License-Identifier: Apache-2.0
// The arguments and results of verify_chain
#pragma once

#include "../../core/accept.h"
#include "../../core/final_token.h"
#include "../../core/race.h"
#include "../../core/rows.h"
#include "../../rules/rule.h"

namespace specdec {

struct VerifyChain {
  static constexpr const char* kName = "verify_chain";
  static constexpr bool kHasPath = false;
  int64_t B = 0, G = 0, D = 0;      // D: drafted tokens of all requests, if ragged
  Present present;                  // of the B requests
  Rows target, draft;               // draft.memory empty: one-hot drafts
  Ints draft_tokens;                // [B, G] or [D]
  int64_t draft_tokens_stride = 0;  // from request to request, if dense
  Ints cu_draft;                    // ragged: [B+1]
  Ints bonus_tokens;                // [B]; the target then has no bonus row
  bool block = false;               // block verification, else token by token
  bool race = false;                // by the race; `block` is then false
  Rules rules;
  Ints seed, offset;                 // [B]; a race without offset has a noise key for each row of the target
  int64_t seed_stride = 0;           // of noise keys from request to request, if dense
  const double* uniforms = nullptr;  // [B, G+1], in place of seed and offset
  TokensOut tokens;                  // [B, G+1]
  int32_t* num_accepted = nullptr;   // [B]
  float* logprobs = nullptr;         // [B, G+1]
  int32_t* status = nullptr;         // [B]

  bool has_ids() const { return bool(draft.ids); }
  // Whether any request (first form) or request b may need block verification or a rule other than the exact one
  SPECDEC_HD bool by_rule() const { return block || rules; }
  SPECDEC_HD bool by_rule(int64_t b) const { return block || rules[b] != Rule::kExact; }
  SPECDEC_HD int64_t start(int64_t b) const { return cu_draft ? clamped(cu_draft[b], D) : -1; }
  SPECDEC_HD int64_t drafted(int64_t b) const {
    return cu_draft ? clamped(clamped(cu_draft[b + 1], D) - start(b), G) : G;
  }
  SPECDEC_HD int64_t draft_token(int64_t b, int64_t i) const {
    return cu_draft ? draft_tokens[start(b) + i] : draft_tokens.at(b * draft_tokens_stride + i * draft_tokens.stride);
  }
  // Whether there is a draft at position i. A token id outside both vocabularies ends the request's draft.
  SPECDEC_HD bool has_draft(int64_t b, int64_t i) const { return i < drafted(b) && is_draft(draft_token(b, i)); }
  SPECDEC_HD bool is_draft(int64_t d) const { return d >= 0 && (d < target.memory.V || d < draft.ids_end()); }
  // The distribution that draft d at position i was drawn from; of kind kNothing if the index of its row is out of
  // range.
  template <class Executor>
  SPECDEC_HD Dist drawn_from(Executor& executor, int64_t b, int64_t i, int64_t d) const {
    if (draft.is_one_hot(start(b), b, i)) return one_hot(d);
    return draft.has_row(start(b), b, i) ? draft.dist_by_id(executor, start(b), b, i) : Dist{};
  }
  // Whether i is the position after the last draft, and the caller has given its token
  SPECDEC_HD bool gives_bonus(int64_t b, int64_t i) const { return bonus_tokens && i == drafted(b); }
  SPECDEC_HD double accept_uniform(int64_t b, int64_t i) const {
    return uniforms ? given_uniform(uniforms[b * (G + 1) + i])
           : seed   ? uniform(seed[b], offset[b], kDomainAccept, i)
                    : 0.0;
  }
  // The noise of a race at position i
  SPECDEC_HD Noise noise(int64_t b, int64_t i) const {
    if (!seed) return {};
    if (offset) return later({seed[b], offset[b]}, i);
    return {seed.at(cu_draft ? (start(b) + b + i) * seed.stride : b * seed_stride + i * seed.stride), 0};
  }
  SPECDEC_HD double final_uniform(int64_t b) const {
    return uniforms ? given_uniform(uniforms[b * (G + 1) + G])
           : seed   ? uniform(seed[b], offset[b], kDomainFinal, 0)
                    : 0.0;
  }
};

SPECDEC_HD void put_draft(const VerifyChain& a, int64_t b, int64_t i, int64_t d, float log_prob) {
  a.tokens.put(b * (a.G + 1) + i, d);
  a.logprobs[b * (a.G + 1) + i] = log_prob;
}
SPECDEC_HD void emit_draft(const VerifyChain& a, int64_t b, int64_t i, const Dist& p) {
  const int64_t d = a.draft_token(b, i);
  put_draft(a, b, i, d, float(p.log_prob(d)));
}

// Writes the padding, token -1 and logprob 0, at [begin, end). Called by each of `threads` threads.
SPECDEC_HD void put_nothing(const VerifyChain& a, int64_t begin, int64_t end, int thread, int threads) {
  for (int64_t i = begin + thread; i < end; i += threads) a.tokens.put(i, -1), a.logprobs[i] = 0;
}

// Writes the results of an absent request; called by each of `threads` threads.
SPECDEC_HD void put_absent(const VerifyChain& a, int64_t b, int thread = 0, int threads = 1) {
  put_nothing(a, b * (a.G + 1), (b + 1) * (a.G + 1), thread, threads);
  if (thread == 0) a.num_accepted[b] = a.status[b] = 0;
}

// The bonus token at position i, if the caller has given it and i is after the last draft
struct Bonus {
  bool given;
  int64_t token;
};
SPECDEC_HD Bonus bonus_at(const VerifyChain& a, int64_t b, int64_t i) {
  const bool given = a.gives_bonus(b, i);
  return {given, given ? a.bonus_tokens[b] : 0};
}

// Writes the final token at position i, where the walk stopped, and the padding after it. uniform() is called only at
// the draw.
template <class Executor, class Stop, class Uniform>
SPECDEC_WALK void finish(Executor& executor, const VerifyChain& a, int64_t b, int64_t i, const Stop& stop,
                         const Uniform& uniform, const Bonus& bonus) {
  const int64_t V = a.target.memory.V, first = b * (a.G + 1);
  put_nothing(a, first + i + 1, first + a.G + 1, executor.thread(), executor.threads());
  int32_t status = stop.status;
  Final last;
  if (bonus.given) {
    if (bonus.token < 0 || bonus.token >= V) status |= kInvalidBonus;
    last = {bonus.token < 0 ? 0 : bonus.token, NAN};  // as given, even if >= V. There is no row, so the logprob is NaN
  } else {
    last = stop.draw(executor, uniform, status);
  }
  if (!executor.leads()) return;
  a.tokens.put(first + i, last.token);
  a.logprobs[first + i] = float(last.logprob);
  a.num_accepted[b] = int32_t(i);
  a.status[b] = status;
}
template <class Executor, class Stop>
SPECDEC_WALK void finish(Executor& executor, const VerifyChain& a, int64_t b, int64_t i, const Stop& stop) {
  finish(executor, a, b, i, stop, [&] { return a.final_uniform(b); }, bonus_at(a, b, i));
}

}  // namespace specdec
