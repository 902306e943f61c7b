// SPDX-License-Identifier: Apache-2.0
// k draws from the distribution of one row, by inverse CDF: independent, or without replacement. Without replacement,
// each drawn id is removed and the rest is renormalised. This is accurate even if the rest has little mass:
// the chunk of a removed id is summed again, not reduced by the id's weight. Or the draws are the winners of a race.
#pragma once

#include "../../core/residual.h"
#include "../../core/final_token.h"
#include "../../core/race.h"

namespace specdec {

struct Sample {
  int64_t N = 0;
  SeenRows logits;                  // [N, V]
  Present present;                  // of the N rows
  const float* stats_in = nullptr;  // [N, 4]; null: made from `sampling`
  Sampling sampling;                // [N]
  int64_t k = 1;
  bool replacement = true;
  bool race = false;                 // the first k of a race (race.h), whatever `replacement` is
  Ints seed, offset, slot;           // [N]
  int64_t first_slot = 0;            // the slot if there is no tensor
  const double* uniforms = nullptr;  // [N, k], in place of seed, offset and slot
  int64_t* tokens = nullptr;         // [N, k]
  float* logprobs = nullptr;         // [N, k]
  RowStats* stats = nullptr;         // [N]

  // The noise of row n in a race. Without an offset, the seed is a noise key.
  SPECDEC_HD Noise noise(int64_t n) const { return {seed ? seed[n] : 0, offset ? offset[n] : 0}; }
  SPECDEC_HD double draft_uniform(int64_t n, int64_t i) const {
    if (uniforms) return given_uniform(uniforms[n * k + i]);
    return seed ? uniform(seed[n], offset[n], kDomainDraft, uint64_t(slot ? slot[n] : first_slot) + uint64_t(i)) : 0.0;
  }
};

// Writes the results of an absent row, one beyond the given number of rows. Each of `threads` threads calls it.
SPECDEC_HD void put_absent(const Sample& a, int64_t n, int thread = 0, int threads = 1) {
  for (int64_t i = thread; i < a.k; i += threads) a.tokens[n * a.k + i] = -1, a.logprobs[n * a.k + i] = 0;
  if (thread == 0) a.stats[n] = RowStats{};
}

template <class Executor>
SPECDEC_HD void sample(Executor& executor, const Sample& a, int64_t n) {
  const Row row = a.logits.of_ids(n);
  const RowStats stats = a.stats_in ? stats_at(a.stats_in, n) : executor.stats(row, a.sampling[n]);
  const Dist q = from_stats(row, stats);
  if (executor.leads()) a.stats[n] = stats;
  int64_t* tokens = a.tokens + n * a.k;
  float* logprobs = a.logprobs + n * a.k;

  const Dist nothing;
  if (!q.valid() || !has_mass(executor, PairCandidate{q, nothing})) {
    const int64_t id = executor.argmax_finite(row);
    for (int64_t i = 0; i < a.k && executor.leads(); ++i) tokens[i] = id, logprobs[i] = NAN;
    return;
  }
  Dist left = q;
  for (int64_t i = 0; i < a.k; ++i) {
    const bool empty = left.kind == Kind::kNothing;
    const int64_t id = empty                     ? -1
                       : q.kind == Kind::kOneHot ? q.hot
                                                 : executor.draw(left, Dist{}, a.draft_uniform(n, i));
    if (executor.leads()) tokens[i] = id, logprobs[i] = empty ? -HUGE_VALF : float(q.log_prob(id));
    if (!a.replacement && !empty && i + 1 < a.k)
      left = q.kind == Kind::kOneHot ? Dist{} : executor.exclude(left, {tokens, i + 1});
  }
}

}  // namespace specdec
