// SPDX-License-Identifier: Apache-2.0
// From the tensors `rule` and `alpha` to the rules of a batch.
#pragma once

#include "check.h"
#include "../rules/rule.h"

namespace specdec {

// rule [B] or [1], alpha [B], [1], [B, 2] or [1, 2]
inline Rules rules(const Op& op, const OptTensor& rule, const OptTensor& alpha, int64_t B) {
  Rules r;
  check(rule || !alpha, op, "alpha needs a rule, got none");
  r.rule = ints_per_row(op, "rule", rule, B);
  if (!alpha) return r;
  const Tensor& t = *alpha;
  check_device(op, "alpha", t);
  check_dtype(op, "alpha", t, ScalarType::Float);
  check((t.dim() == 1 || (t.dim() == 2 && t.size(1) == 2)) && (t.size(0) == B || t.size(0) == 1), op,
        "alpha must have shape [", B, "] or [", B, ", 2], got ", bracketed(t.sizes()));
  r.alpha = {static_cast<const float*>(t.const_data_ptr()), per_row_stride(t)};
  if (t.dim() == 2) r.second = {r.alpha.data + t.stride(1), r.alpha.stride};
  return r;
}

inline void check_range(const Op& op, Rule rule, const Range& range, double x, const char* which, int64_t b) {
  if (range.holds(x)) return;
  std::ostringstream wanted;
  wanted << (range.closed_below ? '[' : '(') << range.least << ", ";
  if (range.most == FLT_MAX)
    wanted << "inf)";
  else
    wanted << range.most << (range.closed_above ? ']' : ')');
  check(false, op, which, " of rule ", kRuleNames[int(rule)], " must be in ", wanted.str(), ", got ", x, " at index ",
        b);
}

inline void check_rules(const Op& op, const Rules& r, bool block, int64_t B) {
  if (!r || !values_at_hand(op)) return;
  for (int64_t b = 0; b < B; ++b) {
    check(r.rule[b] >= 0 && r.rule[b] < kRules, op, "rule must be a code from 0 to ", kRules - 1, ", got ", r.rule[b],
          " at index ", b);
    const Rule rule = r.asked(b);
    check(!block || replaces_target(rule), op, "rule ", kRuleNames[int(rule)],
          " is no law, so method must be token, got block at index ", b);
    if (rule == Rule::kExact) continue;
    if (r.alpha) check_range(op, rule, ranges(rule).first, r.alpha[b], "alpha", b);
    if (r.second) check_range(op, rule, ranges(rule).second, r.second[b], "the second alpha", b);
  }
}

}  // namespace specdec
