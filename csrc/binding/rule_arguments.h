// SPDX-License-Identifier: Apache-2.0
// Turns the arguments `rule` and `alpha` into the rules of a batch.
#pragma once

#include "check.h"
#include "../rules/rule.h"

namespace specdec {

// Tensors: rule [B]; alpha [B] or [B, 2], or with a value for each of a chain's G positions [B, G, 1] or [B, G, 2]. If
// the first dimension is 1, all requests share the values. Instead of tensors, `numbers` may have the rule's code,
// alpha and the second alpha.
inline Rules rules(const Op& op, const OptTensor& rule, const OptTensor& alpha, const Numbers& numbers, int64_t B,
                   int64_t G = -1) {
  Rules r;
  check(!rule || !numbers.has(0), op, "rule must be a tensor or a number, got both");
  check(!alpha || !(numbers.has(1) || numbers.has(2)), op, "alpha must be a tensor or numbers, got both");
  check(rule || numbers.has(0) || !(alpha || numbers.has(1) || numbers.has(2)), op, "alpha needs a rule, got none");
  r.rule = ints_per_row(op, "rule", rule, B);
  if (numbers.has(0)) {
    check(numbers[0] >= 0 && numbers[0] < kRules, op, "rule must be a code from 0 to ", kRules - 1, ", got ",
          numbers[0]);
    r.number = int64_t(numbers[0]);
  }
  if (numbers.has(1)) r.alpha_number = float(numbers[1]);
  if (numbers.has(2)) r.second_number = float(numbers[2]);
  if (!alpha) return r;
  const Tensor& t = *alpha;
  check_device(op, "alpha", t);
  check_float32(op, "alpha", t);
  const int64_t dim = t.dim(), last = dim > 0 ? t.size(dim - 1) : 0;
  const bool fits = dim == 1 || (dim == 2 && last == 2) || (dim == 3 && t.size(1) == G && (last == 1 || last == 2));
  const std::string more = G < 0 ? "" : " or [" + std::to_string(B) + ", " + std::to_string(G) + ", 1]";
  check(fits && (t.size(0) == B || t.size(0) == 1), op, "alpha must have shape [", B, "] or [", B, ", 2]", more,
        ", got ", bracketed(t.sizes()));
  if (t.numel() == 0) return r;
  r.alpha = {static_cast<const float*>(data_of(t)), per_row_stride(t)};
  if (dim > 1 && last == 2) r.second = {r.alpha.data + t.stride(dim - 1), r.alpha.stride};
  if (dim == 3) r.per_position = t.stride(1);
  return r;
}

inline void check_range(const Op& op, Rule rule, const Range& range, double x, const char* which, At at) {
  if (range.holds(x)) return;
  std::ostringstream wanted;
  wanted << (range.closed_below ? '[' : '(') << range.least << ", ";
  if (range.most == FLT_MAX)
    wanted << "inf)";
  else
    wanted << range.most << (range.closed_above ? ']' : ')');
  check(false, op, which, " of rule '", kRuleNames[int(rule)], "' must be in ", wanted.str(), ", got ", x, at);
}

// Checks the rule and parameters of request b, or the numbers for all requests.
inline void check_rule(const Op& op, const Rules& r, bool block, int64_t b, int64_t G, At at) {
  check(r.code(b) >= 0 && r.code(b) < kRules, op, "rule must be a code from 0 to ", kRules - 1, ", got ", r.code(b),
        at);
  const Rule rule = r.asked(b);
  check(!block || replaces_target(rule), op, "rule '", kRuleNames[int(rule)],
        "' defines no distribution, so method must be 'token', got 'block'", at);
  if (rule == Rule::kExact) return;
  const float first = r.alpha_of(b), second = r.second_of(b);
  if (r.alpha || first == first) check_range(op, rule, row_of(rule).first, first, "alpha", at);
  if (r.second || second == second) check_range(op, rule, row_of(rule).second, second, "the second alpha", at);
  for (int64_t i = 1; rule == Rule::kSynthetic && r.per_position && i < G; ++i)
    check_range(op, rule, row_of(rule).first, r.alpha.data[b * r.alpha.stride + i * r.per_position], "alpha", at);
}

inline void check_rules(const Op& op, const Rules& r, bool block, int64_t B, const Present& present, int64_t G = 0) {
  if (r.is_one()) return check_rule(op, r, block, 0, G, kNumber);
  for (int64_t b = 0; r && values_at_hand(op) && b < present.of(B); ++b) check_rule(op, r, block, b, G, {b});
}

// Raises if a method does not take a rule. In a tensor on a GPU, such a rule counts as the exact one.
template <class Takes>
void check_taken(const Op& op, const Rules& r, const char* method, int64_t B, const Present& present,
                 const Takes& takes) {
  const auto check_one = [&](int64_t b, At at) {
    const Rule rule = r.asked(b);  // the given rule, even if its parameter makes it equal to the exact one
    check(takes(rule), op, "rule '", kRuleNames[int(rule)], "' is not defined for method '", method, "', got it", at);
  };
  if (r.is_one()) return check_one(0, kNumber);
  for (int64_t b = 0; r && values_at_hand(op) && b < present.of(B); ++b) check_one(b, {b});
}

}  // namespace specdec
