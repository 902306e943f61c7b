// SPDX-License-Identifier: Apache-2.0
// The k most likely ids of a row, in order, and the logprobs and ranks of given ids.
#pragma once

#include "../../core/order.h"
#include "../../core/arguments.h"

namespace specdec {

struct TopLogprobs {
  int64_t N = 0, k = 0, m = 0;
  SeenRows logits;                  // [N, V]
  const float* stats = nullptr;     // [N, 4]
  Ints tokens;                      // [N, m]
  int64_t token_row_stride = 0;     // of `tokens`, from row to row
  Present present;                  // of the N rows
  int64_t* ids = nullptr;           // [N, k]
  float* logprobs = nullptr;        // [N, k]
  float* token_logprobs = nullptr;  // [N, m]
  int64_t* token_ranks = nullptr;   // [N, m]

  SPECDEC_HD Dist dist(int64_t n) const { return from_stats(logits.at(0, n), stats_at(stats, n)); }

  // Token j of row n; -1 if it is not in the vocabulary
  SPECDEC_HD int64_t token(int64_t n, int64_t j) const {
    const int64_t v = tokens.at(n * token_row_stride + j * tokens.stride);
    return v >= 0 && v < logits.V ? v : -1;
  }
  // The logit of token j. An id counts in the token's rank if its logit is at least this. NaN, which no logit reaches,
  // for a token that is not in the vocabulary.
  SPECDEC_HD float token_logit(const Row& row, int64_t n, int64_t j) const {
    const int64_t v = token(n, j);
    return v < 0 ? NAN : row.entry(v);
  }

  SPECDEC_HD void put(const Dist& p, int64_t n, int64_t i, uint64_t order) const {
    const int64_t v = id_of_order(order);
    ids[n * k + i] = v, logprobs[n * k + i] = logprob(p, v);
  }
  SPECDEC_HD void put_token(const Dist& p, int64_t n, int64_t j) const {
    const int64_t v = token(n, j);
    token_logprobs[n * m + j] = v < 0 ? -HUGE_VALF : logprob(p, v);
  }
  SPECDEC_HD void put_nothing(int64_t n, int64_t i) const {
    if (i < k) ids[n * k + i] = -1, logprobs[n * k + i] = 0;
    if (i < m) token_logprobs[n * m + i] = 0, token_ranks[n * m + i] = 0;
  }

 private:
  SPECDEC_HD static float logprob(const Dist& p, int64_t v) { return p.valid() ? float(p.log_prob(v)) : NAN; }
};

}  // namespace specdec
