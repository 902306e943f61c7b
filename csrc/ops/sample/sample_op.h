// SPDX-License-Identifier: Apache-2.0
// Makes sample's parameters from its tensors, on any device. The template parameter Run then does the work.
#pragma once

#include <tuple>

#include "../../binding/entry_ids.h"
#include "../../binding/views.h"
#include "../../binding/rows.h"
#include "sample.h"

namespace specdec {

template <void (*Run)(const Sample&, const Tensor& like)>
std::tuple<Tensor, Tensor, Tensor> sample_op(const Tensor& logits, SPECDEC_SAMPLING_ARGUMENTS(), const OptTensor& stats,
                                             int64_t k, bool replacement, const OptTensor& seed,
                                             const OptTensor& offset, const OptTensor& slot, int64_t first_slot,
                                             const OptTensor& uniforms, const OptTensor& num_rows, bool race,
                                             SPECDEC_ROW_VIEWS_ARGUMENTS(), const OptTensor& ids) {
  const Op op("sample", logits);
  check_given(op, "logits", logits);
  Sample a;
  a.present = present(op, "num_rows", num_rows);
  a.logits = SPECDEC_SEEN_ROWS(op, a.present);
  take_ids(op, "rows", a.logits.ids, ids, logits, a.present);
  const int64_t N = a.N = logits.size(0);
  check(k >= 0 && k <= kSlots, op, "k must be in [0, 2^33], got ", k);
  a.k = k;
  a.replacement = replacement;
  a.race = race;
  a.sampling = sampling(op, "rows", SPECDEC_GIVEN_SAMPLING(), N, a.present);
  if (stats) {
    check(!a.sampling, op, "rows.stats already hold the sampling parameters, got both");
    check_shape(op, {"rows", "stats"}, *stats, {{"N", N}, 4});
    a.stats_in = stats_pointer(op, {"rows", "stats"}, *stats);
  }
  a.slot = ints_per_row(op, "slot", slot, N);
  check(!slot || first_slot == 0, op, "slot must be a tensor or a number, got both");
  check(first_slot >= 0 && first_slot < kSlots, op, "slot must be in [0, 2^33), got ", first_slot);
  a.first_slot = first_slot;
  const bool certain = temperature || a.sampling.numbers.greedy() || stats;
  if (race) {
    check(!slot && first_slot == 0, op, "slot must be 0 for a race, got ", slot ? "a tensor" : "another number");
    take_noise(op, a, N, seed, offset, uniforms, certain);
  } else {
    take_randomness(op, a, N, k, seed, offset, uniforms, certain);
  }

  Tensor tokens = result(op, {N, k}, a.tokens), logprobs = result(op, {N, k}, a.logprobs);
  Tensor stats_out = result(op, {N, 4}, a.stats);
  if (N > 0) Run(a, logits);
  return {tokens, logprobs, stats_out};
}

template <void (*Run)(const Sample&, const Tensor& like)>
using PlainSample = WithoutViews<&sample_op<Run>, kRowViewsArguments + 1>;

}  // namespace specdec
