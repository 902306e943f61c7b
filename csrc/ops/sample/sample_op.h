// SPDX-License-Identifier: Apache-2.0
// From sample's tensors to its parameters, on any device; Run then does the work.
#pragma once

#include <tuple>

#include "../../binding/verify_arguments.h"
#include "sample.h"

namespace specdec {

template <void (*Run)(const Sample&, const Tensor& like)>
std::tuple<Tensor, Tensor, Tensor> sample_op(const Tensor& logits, const OptTensor& stats, int64_t k, bool replacement,
                                             const OptTensor& temperature, const OptTensor& top_k,
                                             const OptTensor& top_p, const OptTensor& min_p, const OptTensor& seed,
                                             const OptTensor& offset, const OptTensor& slot, const OptTensor& uniforms,
                                             const OptTensor& num_rows, const OptNumbers& numbers, int64_t first_slot) {
  const Op op("sample", logits);
  check_given(op, "logits", logits);
  Sample a;
  check_dim(op, "logits", logits, 2);
  const int64_t N = a.N = logits.size(0);
  a.logits = {logits.const_data_ptr(), logits.size(1), 0, logits.stride(0), check_rows(op, "logits", logits)};
  check(k >= 0, op, "k must be >= 0, got ", k);
  check(k <= kSlots, op, "k must be at most 2^33, got ", k);
  a.k = k;
  a.replacement = replacement;
  a.present = present(op, "num_rows", num_rows);
  a.sampling = sampling(op, "", temperature, top_k, top_p, min_p, {op, "numbers", numbers, 1, 4, 0}, N, a.present);
  if (stats) {
    check(!a.sampling, op, "stats already hold the sampling parameters: give one or the other");
    check_shape(op, "stats", *stats, {N, 4});
    a.stats_in = stats_pointer(op, "stats", *stats);
  }
  a.slot = ints_per_row(op, "slot", slot, N);
  check(!slot || first_slot == 0, op, "slot must be a tensor or a number, got both");
  check(first_slot >= 0 && first_slot < kSlots, op, "slot must be in [0, 2^33), got ", first_slot);
  a.first_slot = first_slot;
  take_randomness(op, a, N, k, seed, offset, uniforms, temperature || a.sampling.numbers.greedy() || stats);

  Tensor tokens = empty(op, {N, k}, ScalarType::Long), logprobs = empty(op, {N, k}, ScalarType::Float);
  Tensor stats_out = empty(op, {N, 4}, ScalarType::Float);
  a.tokens = out_pointer<int64_t>(tokens);
  a.logprobs = out_pointer<float>(logprobs);
  a.stats = out_pointer<RowStats>(stats_out);
  if (N > 0) Run(a, logits);
  return {tokens, logprobs, stats_out};
}

}  // namespace specdec
