// SPDX-License-Identifier: Apache-2.0
// Makes top_logprobs' parameters from its tensors, on any device. The template parameter Run then does the work.
#pragma once

#include <tuple>

#include "../../binding/views.h"
#include "top_logprobs.h"

namespace specdec {

template <void (*Run)(const TopLogprobs&, const Tensor& like)>
std::tuple<Tensor, Tensor, Tensor, Tensor> top_logprobs_op(const Tensor& logits, const Tensor& stats, int64_t k,
                                                           const OptTensor& tokens, const OptTensor& num_rows,
                                                           SPECDEC_ROW_VIEWS_ARGUMENTS()) {
  const Op op("top_logprobs", logits);
  check_given(op, "logits", logits, "stats", stats);
  TopLogprobs a;
  a.present = present(op, "num_rows", num_rows);
  a.logits = SPECDEC_SEEN_ROWS(op, a.present);
  const int64_t N = a.N = logits.size(0), V = a.logits.V;
  check_shape(op, {"rows", "stats"}, stats, {{"N", N}, 4});
  a.stats = stats_pointer(op, {"rows", "stats"}, stats);
  check(k >= 0 && k <= V, op, "k must be in [0, V=", V, "], got ", k);
  a.k = k;
  if (tokens) {
    check_dims(op, "tokens", *tokens, "N, m");
    check_shape(op, "tokens", *tokens, {{"N", N}, {"m", tokens->size(1)}});
    a.m = tokens->size(1);
    a.tokens = ints(op, "tokens", *tokens, tokens->stride(1));
    a.token_row_stride = tokens->stride(0);
  }

  Tensor ids = result(op, {N, k}, a.ids), logprobs = result(op, {N, k}, a.logprobs);
  Tensor token_logprobs = result(op, {N, a.m}, a.token_logprobs), token_ranks = result(op, {N, a.m}, a.token_ranks);
  if (N > 0 && k + a.m > 0) Run(a, logits);
  return {ids, logprobs, token_logprobs, token_ranks};
}

template <void (*Run)(const TopLogprobs&, const Tensor& like)>
using PlainTopLogprobs = WithoutViews<&top_logprobs_op<Run>, kRowViewsArguments>;

}  // namespace specdec
