// SPDX-License-Identifier: Apache-2.0
// The views of rows as torch's dispatcher passes them: penalties, a bias and a mask. They are at the end of an op's
// arguments.
#pragma once

#include "../core/rows.h"
#include "bias.h"
#include "mask.h"
#include "penalties.h"
#include "without_views.h"

namespace specdec {

struct GivenViews {
  GivenPenalties penalties;
  GivenBias bias;
  GivenMask mask;
};

#define SPECDEC_VIEWS_ARGUMENTS(prefix) \
  SPECDEC_PENALTIES_ARGUMENTS(prefix), SPECDEC_BIAS_ARGUMENTS(prefix), SPECDEC_MASK_ARGUMENTS(prefix)
constexpr size_t kViewsArguments = kPenaltiesArguments + kBiasArguments + kMaskArguments;
#define SPECDEC_GIVEN_VIEWS(side, prefix)                                                                     \
  GivenViews {                                                                                                \
    SPECDEC_GIVEN_PENALTIES(side, prefix), SPECDEC_GIVEN_BIAS(side, prefix), SPECDEC_GIVEN_MASK(side, prefix) \
  }

// For errors: the field of the public Rows that holds a side's views
inline const char* named(const Views& v) { return v.penalties ? "penalties" : v.bias ? "bias" : "allowed"; }

// The views of the requests or rows that `positions` describes. `window` has their drafted tokens.
inline Views views(const Op& op, const GivenViews& given, const Positions& positions, const Window& window,
                   const Present& present) {
  Views v;
  v.penalties = penalties(op, given.penalties, positions.B, present);
  v.bias = bias(op, given.bias, positions);
  v.mask = mask(op, given.mask, positions, window, present);
  v.window = window;
  check(!v || positions.B <= INT32_MAX, op, Name(given.penalties.side, named(v)),
        " must be of fewer than 2^31 rows, got ", positions.B);
  if (v.bias && values_at_hand(op)) sort_bias(op, given.bias.side, window, v.bias, positions, present);
  return v;
}

// Sets the views of one side, target or draft, of a verification.
inline void take_views(const Op& op, Rows& rows, const GivenViews& given, const Positions& positions,
                       const Window& window, const Present& present) {
  rows.views = views(op, given, positions, window, present);
  if (!rows.views) return;
  const char* const side = given.bias.side;
  const char* const field = named(rows.views);
  const char* const needs = rows.views.penalties ? " need " : " needs ";
  check(bool(rows.memory), op, Name(side, field), needs, Name(side, "logits"), ", got none");
  check(rows.kind == Kind::kLogits, op, Name(side, field), needs, Name(side, "kind"), "='logits', got 'probs'");
}

// The arguments for the views of an op on rows [N, V]. `drafted` [N, n]: the tokens of each row's window.
#define SPECDEC_ROW_VIEWS_ARGUMENTS() SPECDEC_VIEWS_ARGUMENTS(), const OptTensor& drafted
constexpr size_t kRowViewsArguments = kViewsArguments + 1;

inline SeenRows seen_rows(const Op& op, const Tensor& logits, const GivenViews& given, const OptTensor& drafted,
                          const Present& present) {
  SeenRows rows{row_memory(op, {"rows", "logits"}, logits), {}, 0, {}};
  const int64_t N = logits.size(0);
  Window window;
  if (drafted) {
    const Name name("rows", "penalties.drafted");
    check(given.penalties.counts.has_value(), op, name, " must be given with penalties.counts, got it alone");
    check_dims(op, name, *drafted, "N, n");
    check_shape(op, name, *drafted, {{"N", N}, {"n", drafted->size(1)}});
    check(drafted->size(1) <= INT32_MAX, op, name, " must have fewer than 2^31 columns, got ", drafted->size(1));
    window.tokens = ints(op, name, *drafted, drafted->stride(1));
    window.stride = drafted->stride(0);
    rows.drafted = drafted->size(1);
  }
  rows.views = views(op, given, {N, 1, N, nullptr}, window, present);
  return rows;
}
#define SPECDEC_SEEN_ROWS(op, present) seen_rows(op, logits, SPECDEC_GIVEN_VIEWS("rows", ), drafted, present)

}  // namespace specdec
