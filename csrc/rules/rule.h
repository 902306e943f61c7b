// SPDX-License-Identifier: Apache-2.0
// The rules for accepting drafts, and their parameters
#pragma once

#include "../core/arguments.h"

namespace specdec {

// The range of one parameter. An end that is not `closed` is excluded. `otherwise` is the default: the strictest value,
// except for typical acceptance, whose authors give one.
struct Range {
  double least = 0, most = 1, otherwise = 0;
  bool closed_below = true, closed_above = true;

  SPECDEC_HD bool holds(double x) const {
    return (closed_below ? x >= least : x > least) && (closed_above ? x <= most : x < most);
  }
  // x clamped to the range; the default if x is NaN. Used because a bad value in device memory cannot raise an error.
  SPECDEC_HD double nearest(double x) const {
    if (holds(x)) return x;
    return x >= most    ? (closed_above ? most : most - 0x1p-24)
           : x <= least ? (closed_below ? least : 0x1p-24)
                        : otherwise;
  }
};

// The ranges used in the table below. If a rule has no second parameter, its range is any().
SPECDEC_HD Range unit(double otherwise = 0) { return {0, 1, otherwise}; }
SPECDEC_HD Range below_one(double otherwise = 0) { return {0, 1, otherwise, true, false}; }
SPECDEC_HD Range positive() { return {0, 1, 1, false}; }
SPECDEC_HD Range any(double otherwise = 0) { return {0, FLT_MAX, otherwise}; }
SPECDEC_HD Range from_one() { return {1, FLT_MAX, 1}; }

// clang-format off
// One line per rule, in the order of specdec_kernels/registry.py. Columns: pi: the rule replaces p by a distribution pi
// (the others only decide what is accepted; the exact rule's pi is p); draft: the draft's row affects what is accepted
// or emitted; entropy: it may need the entropy of rows; exact at: the value of the first parameter at which it equals
// the exact rule, NAN if none; first, second: the ranges of the parameters.
#define SPECDEC_RULES(RULE)                                                                      \
  /*   enumerator   name          pi     draft  entropy exact at  first         second */        \
  RULE(kExact,      "exact",      true,  true,  false,  NAN,      unit(),       any())           \
  RULE(kChow,       "chow",       true,  true,  false,  NAN,      unit(),       any())           \
  RULE(kChowLog,    "chow_log",   true,  true,  true,   NAN,      any(),        any())           \
  RULE(kDiff,       "diff",       true,  true,  false,  NAN,      unit(),       any())           \
  RULE(kDiffLog,    "diff_log",   true,  true,  true,   NAN,      any(),        any())           \
  RULE(kOpt,        "opt",        true,  true,  false,  NAN,      any(),        any())           \
  RULE(kOptLog,     "opt_log",    true,  true,  true,   NAN,      any(),        any())           \
  RULE(kTokenV1,    "token_v1",   true,  true,  false,  NAN,      unit(),       any())           \
  RULE(kTokenV2,    "token_v2",   true,  true,  false,  NAN,      unit(),       any())           \
  RULE(kTokenV3,    "token_v3",   true,  true,  false,  NAN,      unit(),       any())           \
  RULE(kLenience,   "lenience",   false, true,  false,  1,        positive(),   any())           \
  RULE(kLossy,      "lossy",      true,  true,  false,  0,        below_one(),  any())           \
  RULE(kEnsemble,   "ensemble",   true,  true,  false,  1,        unit(1),      any())           \
  RULE(kTypical,    "typical",    false, false, true,   NAN,      unit(0.09),   any(0.3))        \
  RULE(kRelaxed,    "relaxed",    false, false, false,  NAN,      from_one(),   unit())          \
  RULE(kSynthetic,  "synthetic",  false, false, false,  NAN,      unit(),       any())           \
  RULE(kThresholds, "thresholds", false, false, false,  NAN,      positive(),   positive())       \
  /* the next rule's line */
// clang-format on

enum class Rule : int32_t {
#define SPECDEC_ENUMERATOR(enumerator, ...) enumerator,
  SPECDEC_RULES(SPECDEC_ENUMERATOR)
};
#define SPECDEC_NAME(enumerator, name, ...) name,
constexpr const char* kRuleNames[] = {SPECDEC_RULES(SPECDEC_NAME)};
constexpr int64_t kRules = sizeof(kRuleNames) / sizeof(*kRuleNames);

struct RuleRow {
  bool replaces_target = true, reads_draft = true, reads_entropy = false;
  double exact_at = NAN;
  Range first, second;
};

SPECDEC_HD RuleRow row_of(Rule rule) {
  switch (rule) {
#define SPECDEC_CASE(enumerator, name, ...) \
  case Rule::enumerator: return {__VA_ARGS__};
    SPECDEC_RULES(SPECDEC_CASE)
  }
  return {};
}

SPECDEC_HD bool replaces_target(Rule rule) { return row_of(rule).replaces_target; }
SPECDEC_HD bool reads_draft(Rule rule) { return row_of(rule).reads_draft; }
SPECDEC_HD bool reads_entropy(Rule rule) { return row_of(rule).reads_entropy; }

struct Alpha {
  double first, second;
};

// The rule and parameters of each request: tensors, or one number for all requests
struct Rules {
  Ints rule;                                      // [B]
  Floats alpha, second;                           // [B]
  int64_t per_position = 0;                       // synthetic: the stride from one position's rate to the next
  int64_t number = 0;                             // the code of one rule for all
  float alpha_number = NAN, second_number = NAN;  // NaN: the default

  SPECDEC_HD explicit operator bool() const { return rule || number != 0; }
  SPECDEC_HD bool is_one() const { return !rule && !alpha; }  // whether there are only numbers
  SPECDEC_HD int64_t code(int64_t b) const { return rule ? rule[b] : number; }
  SPECDEC_HD float alpha_of(int64_t b) const { return alpha ? alpha[b] : alpha_number; }
  SPECDEC_HD float second_of(int64_t b) const { return second ? second[b] : second_number; }
  // The rule given for request b; kExact if its code is unknown
  SPECDEC_HD Rule asked(int64_t b) const {
    const int64_t asked = code(b);
    return asked > 0 && asked < kRules ? Rule(asked) : Rule::kExact;
  }
  // kExact if the rule's first parameter makes it equal to the exact rule
  SPECDEC_HD Rule operator[](int64_t b) const {
    const Rule r = asked(b);
    return parameters(b).first == row_of(r).exact_at ? Rule::kExact : r;
  }
  SPECDEC_HD Alpha parameters(int64_t b) const {
    const RuleRow r = row_of(asked(b));
    return {r.first.nearest(alpha_of(b)), r.second.nearest(second_of(b))};
  }
  SPECDEC_HD double synthetic_rate(int64_t b, int64_t i) const {
    return row_of(Rule::kSynthetic)
        .first.nearest(alpha ? alpha.data[b * alpha.stride + i * per_position] : alpha_number);
  }
};

}  // namespace specdec
