// SPDX-License-Identifier: Apache-2.0
// Samples the first k of a race (core/race.h) on one row, the largest key first
#pragma once

#include "../../core/race.h"
#include "sample.h"

namespace specdec {

template <class Executor>
SPECDEC_HD void sample_by_race(Executor& executor, const Sample& a, int64_t n) {
  const Row row = a.logits.of_ids(n);
  const RowStats stats = a.stats_in ? stats_at(a.stats_in, n) : executor.stats(row, a.sampling[n]);
  const Dist q = from_stats(row, stats);
  if (executor.leads()) a.stats[n] = stats;
  int64_t* tokens = a.tokens + n * a.k;
  float* logprobs = a.logprobs + n * a.k;

  int64_t id = q.valid() ? 0 : -1;
  for (int64_t i = 0; i < a.k; ++i) {
    if (id >= 0) id = q.kind != Kind::kOneHot ? executor.race(q, a.noise(n), {tokens, i}, a.k) : i == 0 ? q.hot : -1;
    if (i == 0 && id < 0) {
      const int64_t largest = executor.argmax_finite(row);
      for (; i < a.k && executor.leads(); ++i) tokens[i] = largest, logprobs[i] = NAN;
      return;
    }
    if (executor.leads()) tokens[i] = id, logprobs[i] = id < 0 ? -HUGE_VALF : float(q.log_prob(id));
  }
}

}  // namespace specdec
