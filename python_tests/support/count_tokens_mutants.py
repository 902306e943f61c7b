# SPDX-License-Identifier: Apache-2.0
"""count_tokens_'s sources with one error: name -> (file, its text, the mutant's text)."""

RULE = "ops/count_tokens_/count_tokens_.h"

SOURCES = {
    "tokens after the first -1 count": (RULE, "if (a.token(b, i) == -1) end = i;", ""),
    "num_tokens is not read": (RULE, "if (a.num_tokens) return", "if (false) return"),
    "a repeated token counts once": (RULE, "int64_t{list.counts[j]} + times", "int64_t{list.counts[j]} + 1"),
    "counts overflow": (RULE, "count < kMostCounted ? count : kMostCounted", "count"),
    "negative ids count": (RULE, "v >= 0 && v < kIdsEnd", "v < kIdsEnd"),
    "of equal counts the lowest id leaves": (RULE, "all.place_of_listed(j) < kept.end", "j >= kept.end"),
    "the largest counts leave": (RULE, "count > kept.count ||", "count < kept.count ||"),
    "a new id always enters": (RULE, "times > kept.count ||", "times >= 0 ||"),
    "one entry too many leaves": (RULE, "at.before < left", "at.before <= left"),
    "a full list is not reported": (RULE, "return drop > 0 ? kHistoryFull : 0;", "return 0;"),
    "an absent request has the last list": (RULE, "if (s == -1) return 0;", ""),
    "entries move from the front": (
        RULE,
        "int last = list.length - 1; last >= begin; last -= Lanes::kWidth",
        "int last = begin + Lanes::kWidth - 1; last < list.length; last += Lanes::kWidth",
    ),
}
