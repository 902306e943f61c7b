// SPDX-License-Identifier: Apache-2.0
// What a request asks of its drafts: the rules, and the parameters they take.
#pragma once

#include "../core/views.h"

namespace specdec {

enum class Rule : int32_t {
  kExact,
  kChow,
  kChowLog,
  kDiff,
  kDiffLog,
  kOpt,
  kOptLog,  // cascades: one of the two laws
  kTokenV1,
  kTokenV2,
  kTokenV3,  // cascades: q for some ids, p for the others
  kLenience,
  kLossy,
  kEnsemble,
  kTypical,
  kRelaxed,
  kSynthetic,
  kThresholds
};
constexpr const char* kRuleNames[] = {"exact",    "chow",     "chow_log", "diff",      "diff_log",  "opt",
                                      "opt_log",  "token_v1", "token_v2", "token_v3",  "lenience",  "lossy",
                                      "ensemble", "typical",  "relaxed",  "synthetic", "thresholds"};
constexpr int64_t kRules = sizeof(kRuleNames) / sizeof(*kRuleNames);

// Whether the rule puts a law pi in the place of p. The others say when to accept, and nothing of a law.
SPECDEC_HD bool replaces_target(Rule rule) {
  return rule <= Rule::kTokenV3 || rule == Rule::kLossy || rule == Rule::kEnsemble;
}

// Whether the draft's row has a say in what is accepted or emitted.
SPECDEC_HD bool reads_draft(Rule rule) { return replaces_target(rule) || rule == Rule::kLenience; }

// Whether the rule asks rows for their entropy.
SPECDEC_HD bool reads_entropy(Rule rule) {
  return rule == Rule::kTypical || rule == Rule::kChowLog || rule == Rule::kDiffLog || rule == Rule::kOptLog;
}

// Of one parameter. An end that is not `closed` does not belong to it; what is not given takes the default: the
// strictest value, but for typical acceptance, whose authors give one.
struct Range {
  double least = 0, most = 1, otherwise = 0;
  bool closed_below = true, closed_above = true;

  SPECDEC_HD bool holds(double x) const {
    return (closed_below ? x >= least : x > least) && (closed_above ? x <= most : x < most);
  }
  // A value on a device cannot raise.
  SPECDEC_HD double nearest(double x) const {
    if (holds(x)) return x;
    return x >= most    ? (closed_above ? most : most - 0x1p-24)
           : x <= least ? (closed_below ? least : 0x1p-24)
                        : otherwise;
  }
};

struct Ranges {
  Range first, second;
};

SPECDEC_HD Ranges ranges(Rule rule) {
  const Range share{0, 1, 0}, strict{0, 1, 1}, positive{0, 1, 1, false}, any{0, FLT_MAX, 0};
  switch (rule) {
    case Rule::kChowLog:
    case Rule::kDiffLog:
    case Rule::kOpt:
    case Rule::kOptLog: return {any, any};
    case Rule::kLenience: return {positive, any};
    case Rule::kLossy: return {{0, 1, 0, true, false}, any};
    case Rule::kEnsemble: return {strict, any};
    case Rule::kTypical: return {{0, 1, 0.09}, {0, FLT_MAX, 0.3}};
    case Rule::kRelaxed: return {{1, FLT_MAX, 1}, share};
    case Rule::kThresholds: return {positive, positive};
    default: return {share, any};
  }
}

struct Alpha {
  double first, second;
};

// One rule and its parameters for each request, or numbers that serve all
struct Rules {
  Ints rule;                                      // [B]
  Floats alpha, second;                           // [B]
  int64_t per_position = 0;                       // synthetic: from a position's rate to the next one's
  int64_t number = 0;                             // the rule of all: exact
  float alpha_number = NAN, second_number = NAN;  // NaN: the default

  SPECDEC_HD explicit operator bool() const { return rule || number != 0; }
  SPECDEC_HD bool is_one() const { return !rule && !alpha; }  // numbers alone
  SPECDEC_HD int64_t code(int64_t b) const { return rule ? rule[b] : number; }
  SPECDEC_HD float alpha_of(int64_t b) const { return alpha ? alpha[b] : alpha_number; }
  SPECDEC_HD float second_of(int64_t b) const { return second ? second[b] : second_number; }
  SPECDEC_HD Rule asked(int64_t b) const {
    const int64_t asked = code(b);
    return asked > 0 && asked < kRules ? Rule(asked) : Rule::kExact;
  }
  // A rule at the end where it is the exact one, is it.
  SPECDEC_HD Rule operator[](int64_t b) const {
    const Rule r = asked(b);
    const double x = parameters(b).first;
    const bool ends = r == Rule::kLossy || r == Rule::kLenience || r == Rule::kEnsemble;
    return ends && x == ranges(r).first.otherwise ? Rule::kExact : r;
  }
  SPECDEC_HD Alpha parameters(int64_t b) const {
    const Ranges r = ranges(asked(b));
    return {r.first.nearest(alpha_of(b)), r.second.nearest(second_of(b))};
  }
  SPECDEC_HD double synthetic_rate(int64_t b, int64_t i) const {
    return ranges(Rule::kSynthetic)
        .first.nearest(alpha ? alpha.data[b * alpha.stride + i * per_position] : alpha_number);
  }
};

}  // namespace specdec
