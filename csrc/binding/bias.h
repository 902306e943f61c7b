// SPDX-License-Identifier: Apache-2.0
// A bias as the dispatcher passes it
#pragma once

#include <cmath>

#include "../core/bias.h"
#include "lists.h"

namespace specdec {

struct GivenBias {
  const char* side;  // in errors
  const OptTensor &ids, &values, &row;
  Name field(const char* of) const { return {side, of}; }
};

#define SPECDEC_BIAS_ARGUMENTS(prefix) \
  const OptTensor &prefix##bias_ids, const OptTensor &prefix##bias_values, const OptTensor &prefix##bias_row
constexpr size_t kBiasArguments = 3;
#define SPECDEC_GIVEN_BIAS(side, prefix) \
  GivenBias { side, prefix##bias_ids, prefix##bias_values, prefix##bias_row }

// The bias of one side
inline Bias bias(const Op& op, const GivenBias& given, const Positions& positions) {
  Bias p;
  if (!given.ids && !given.values && !given.row) return p;
  check(given.ids && given.values, op, given.field("bias.ids"), " and values must be given with a bias, got ",
        given.ids      ? "ids alone"
        : given.values ? "values alone"
                       : "neither");
  check_dims(op, given.field("bias.ids"), *given.ids, "S, I");
  p.n = given.ids->size(1);
  p.ids = ints(op, given.field("bias.ids"), *given.ids, given.ids->stride(1));
  // An empty tensor's address may be null, which would mean that there is no bias.
  if (given.ids->numel() == 0) p.ids.data = "";
  p.ids_stride = given.ids->stride(0);
  check(p.n <= INT32_MAX, op, given.field("bias.ids"), " must have fewer than 2^31 columns, got ", p.n);
  check_device(op, given.field("bias.values"), *given.values);
  check_shape(op, given.field("bias.values"), *given.values, {{"S", given.ids->size(0)}, {"I", p.n}});
  check_float32(op, given.field("bias.values"), *given.values);
  check_adjacent(op, given.field("bias.values"), *given.values);
  p.values = static_cast<const float*>(data_of(*given.values)), p.values_stride = given.values->stride(0);
  take_lists(op, given.field("bias.ids"), given.field("bias.row"), p, given.ids->size(0), given.row, positions);
  return p;
}

// Checks and sorts the lists that present requests use. The CPU finds the ids of a chunk by binary search.
inline void sort_bias([[maybe_unused]] const Op& op, [[maybe_unused]] const char* side,
                      [[maybe_unused]] const Window& window, [[maybe_unused]] Bias& bias,
                      [[maybe_unused]] const Positions& positions, [[maybe_unused]] const Present& present) {
#ifndef SPECDEC_IN_CUDA
  bias.sorted.reset(new Bias::Entry[std::max<int64_t>(bias.S * bias.n, 1)]);
  std::vector<bool> done(bias.S);
  std::vector<uint64_t> order(bias.n);  // entry j as (id, j) in one number: both are below 2^31
  const auto sort = [&](int64_t s) {
    for (int64_t j = 0; j < bias.n; ++j) {
      const int64_t v = bias.id(s, j);
      const float value = bias.value(s, j);
      check(v >= -1, op, Name(side, "bias.ids"), " must be >= -1, got ", v, " in list ", s);
      check(v < 0 || value < HUGE_VALF, op, Name(side, "bias.values"), " must be finite or -inf, got ", value,
            " in list ", s);
      order[j] = uint64_t(v < 0 || v > INT32_MAX ? INT32_MAX : v) << 32 | uint64_t(j);
    }
    if (!std::is_sorted(order.begin(), order.end())) std::sort(order.begin(), order.end());
    for (int64_t j = 0; j < bias.n; ++j)
      bias.sorted[s * bias.n + j] = {int32_t(order[j] >> 32), bias.value(s, uint32_t(order[j]))};
  };
  for_lists(op, {side, "bias.row"}, bias, window, positions, present, [&](int64_t s) {
    if (!done[s]) sort(s), done[s] = true;
  });
#endif
}

}  // namespace specdec
