// SPDX-License-Identifier: Apache-2.0
// The k most likely ids of a row, in their order, and the logprob and rank of given ids.
#pragma once

#include "../../core/views.h"

namespace specdec {

// Ids in their order, as numbers: the larger logit first, the lower id of equal ones, NaN last. No two ids of a row
// have the same.
SPECDEC_HD uint32_t logit_order(float z) { return z == z ? ordered(z + 0.0f) : 0; }
SPECDEC_HD uint64_t order_of(float z, int64_t id) { return uint64_t(logit_order(z)) << 32 | uint32_t(~id); }
SPECDEC_HD int64_t id_of_order(uint64_t order) { return int64_t(uint32_t(~order)); }

struct TopLogprobs {
  int64_t N = 0, k = 0, m = 0;
  Rows logits;                      // [N, V]
  const float* stats = nullptr;     // [N, 4]
  Ints tokens;                      // [N, m], a stride of its own for each dimension
  int64_t token_row_stride = 0;     //
  Present present;                  // of the rows
  int64_t* ids = nullptr;           // [N, k]
  float* logprobs = nullptr;        // [N, k]
  float* token_logprobs = nullptr;  // [N, m]
  int64_t* token_ranks = nullptr;   // [N, m]

  SPECDEC_HD Dist dist(int64_t n) const { return from_stats(logits.at(0, n), stats_at(stats, n)); }

  // Token j of row n; -1 if it is no id of the vocabulary.
  SPECDEC_HD int64_t token(int64_t n, int64_t j) const {
    const int64_t v = tokens.at(n * token_row_stride + j * tokens.stride);
    return v >= 0 && v < logits.V ? v : -1;
  }
  // What an id must reach to count in token j's rank: nothing reaches a token that is none.
  SPECDEC_HD float token_logit(const Row& row, int64_t n, int64_t j) const {
    const int64_t v = token(n, j);
    return v < 0 ? NAN : load_scalar(row, v);
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
