// SPDX-License-Identifier: Apache-2.0
// The rows of one side, target or draft, as torch's dispatcher passes them: one argument per field, in the order of
// docs/ops.md.
#pragma once

#include <tuple>

#include "../core/rows.h"
#include "check.h"

namespace specdec {

// The sampling parameters: tensors, or one number each for all rows
struct GivenSampling {
  const OptTensor &temperature, &top_k, &top_p, &min_p, &top_n_sigma;
  const OptNumbers& numbers;
};

struct GivenRows {
  const char* name;      // in errors: "target", "draft"
  const Tensor* logits;  // null: none
  GivenSampling sampling;
  const OptTensor& stats;
  int64_t kind;
  const OptTensor& row;

  Name field(const char* of) const { return {name, of}; }
};

#define SPECDEC_SAMPLING_ARGUMENTS(prefix)                                                              \
  const OptTensor &prefix##temperature, const OptTensor &prefix##top_k, const OptTensor &prefix##top_p, \
      const OptTensor &prefix##min_p, const OptTensor &prefix##top_n_sigma, const OptNumbers &prefix##numbers
#define SPECDEC_GIVEN_SAMPLING(prefix)                                                                     \
  GivenSampling {                                                                                          \
    prefix##temperature, prefix##top_k, prefix##top_p, prefix##min_p, prefix##top_n_sigma, prefix##numbers \
  }

// LOGITS: Tensor, or OptTensor if the side may be missing
#define SPECDEC_ROWS_ARGUMENTS(LOGITS, side)                                                       \
  const LOGITS &side##_logits, SPECDEC_SAMPLING_ARGUMENTS(side##_), const OptTensor &side##_stats, \
      int64_t side##_kind, const OptTensor &side##_row
#define SPECDEC_GIVEN_ROWS(side) \
  GivenRows { #side, address(side##_logits), SPECDEC_GIVEN_SAMPLING(side##_), side##_stats, side##_kind, side##_row }

inline const Tensor* address(const Tensor& t) { return &t; }
inline const Tensor* address(const OptTensor& t) { return t ? &*t : nullptr; }

// Takes and checks the sampling parameters of N rows or requests. `side`: their prefix in errors.
inline Sampling sampling(const Op& op, const char* side, const GivenSampling& given, int64_t N,
                         const Present& present) {
  const OptTensor* const tensors[] = {&given.temperature, &given.top_k, &given.top_p, &given.min_p, &given.top_n_sigma};
  static const char* const fields[] = {"temperature", "top_k", "top_p", "min_p", "top_n_sigma"};
  constexpr int kFields = std::size(fields);
  const Numbers numbers(op, {side, "numbers"}, given.numbers, kFields);
  Sampling s;
  bool has_tensors = false;
  for (int i = 0; i < kFields; ++i) s.has_numbers |= numbers.has(i), has_tensors |= tensors[i]->has_value();
  if (!has_tensors && !s.has_numbers) return {};
  for (int i = 0; i < kFields; ++i)
    check(!*tensors[i] || !numbers.has(i), op, Name(side, fields[i]), " must be a tensor or a number, got both");
  s.temperature = floats_per_row(op, {side, "temperature"}, given.temperature, N);
  s.top_k = ints_per_row(op, {side, "top_k"}, given.top_k, N);
  s.top_p = floats_per_row(op, {side, "top_p"}, given.top_p, N);
  s.min_p = floats_per_row(op, {side, "min_p"}, given.min_p, N);
  s.top_n_sigma = floats_per_row(op, {side, "top_n_sigma"}, given.top_n_sigma, N);
  if (numbers.has(0)) s.numbers.temperature = float(numbers[0]);
  if (numbers.has(1)) s.numbers.top_k = int64_t(std::max(std::min(numbers[1], 0x1p62), -0x1p62));
  if (numbers.has(2)) s.numbers.top_p = float(numbers[2]);
  if (numbers.has(3)) s.numbers.min_p = float(numbers[3]);
  if (numbers.has(4)) s.numbers.top_n_sigma = float(numbers[4]);
  check_values(op, side, s, N, present);
  return s;
}

// Takes and checks the rows of one side. `dims` names the dimensions of the logits. `shape` has their sizes without V;
// its last one becomes per_request.
inline Rows rows(const Op& op, const GivenRows& given, const Sampling& sampling, std::vector<Size> shape,
                 const char* dims) {
  const Tensor& logits = *given.logits;
  const OptTensor& stats = given.stats;
  check(given.kind == 0 || given.kind == 1, op, given.field("kind"), " must be 0 (logits) or 1 (probabilities), got ",
        given.kind);
  Rows r;
  r.memory = row_memory(op, given.field("logits"), logits, dims);
  shape.push_back({std::strrchr(dims, ' ') + 1, r.memory.V});
  check_shape(op, given.field("logits"), logits, shape);
  r.kind = given.kind == 0 ? Kind::kLogits : Kind::kProbs;
  r.per_request = shape[shape.size() - 2].n;
  r.sampling = sampling;
  if (stats) {
    shape.back() = {4};
    check_shape(op, given.field("stats"), *stats, shape);
    r.stats = stats_pointer(op, given.field("stats"), *stats);
  }
  check(given.kind == 0 || (!stats && !sampling), op, given.field("stats"), " and sampling parameters need ",
        given.field("kind"), "='logits', got 'probs'");
  check(!stats || !sampling, op, given.field("stats"), " already hold the sampling parameters, got both");
  return r;
}

// Checks that a side without logits has no stats, sampling parameters or row indices.
inline void check_missing(const Op& op, const GivenRows& given, const Sampling& sampling) {
  check(!given.stats && !sampling && !given.row, op, given.field("row"), ", ", given.field("stats"),
        " and sampling parameters need ", given.field("logits"), ", got none");
}

// Sets seed and offset [B], or uniforms [B, columns], in an op's arguments `a`. They may be missing only if `certain`:
// then all rows may be greedy, which needs no random numbers.
template <class Arguments>
void take_randomness(const Op& op, Arguments& a, int64_t B, int64_t columns, const OptTensor& seed,
                     const OptTensor& offset, const OptTensor& uniforms, bool certain) {
  check(!uniforms || !(seed || offset), op, "uniforms take the place of seed and offset, got both");
  if (uniforms) a.uniforms = uniforms_pointer(op, *uniforms, B, columns);
  a.seed = int64s_per_row(op, "seed", seed, B);
  a.offset = int64s_per_row(op, "offset", offset, B);
  check(seed.has_value() == offset.has_value(), op, "seed and offset go together, got ", seed ? "seed" : "offset",
        " alone");
  check(uniforms || seed || certain, op, "needs seed and offset, or uniforms, got neither");
}

// Sets seed and offset [B] of a race (core/race.h). offset is the position of a request's first token. Without offset,
// seed has a noise key for each row, with the shape `rows`, or [B] if `rows` is empty.
template <class Arguments>
void take_noise(const Op& op, Arguments& a, int64_t B, const OptTensor& seed, const OptTensor& offset,
                const OptTensor& uniforms, bool certain, const std::vector<Size>& rows = {}) {
  check(!uniforms, op, "uniforms must be None for a race, got a tensor");
  check(seed || !offset, op, "seed and offset go together, got offset alone");
  check(seed || certain, op, "a race needs seed, got None");
  if (!seed || offset || rows.empty()) {
    a.offset = int64s_per_row(op, "offset", offset, B);
    a.seed = int64s_per_row(op, "seed", seed, B);
    return;
  }
  check_shape(op, "seed without offset", *seed, rows);
  a.seed = int64s(op, "seed", *seed, seed->stride(seed->dim() - 1));
  if constexpr (requires { a.seed_stride; }) a.seed_stride = seed->stride(0);
}

}  // namespace specdec
