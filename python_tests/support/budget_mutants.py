# SPDX-License-Identifier: Apache-2.0
"""budget's sources with one error: name -> (file, its text, the mutant's text)."""

RULE = "ops/budget/budget.h"

SOURCES = {
    "num_drafts is not read": (RULE, "num_drafts ? int(clamped(num_drafts[b], G)) : G", "G"),
    "num_drafts is not clamped": (RULE, "int(clamped(num_drafts[b], G))", "int(num_drafts[b])"),
    "NaN ends the search": (RULE, "x > 0 ? x : 0.0f", "x < 0 ? 0.0f : x"),
    "negative survival counts": (RULE, "x > 0 ? x : 0.0f", "x == x ? x : 0.0f"),
    "survival may rise": (RULE, "least = worth < least ? worth : least;", "least = worth;"),
    "small survival comes first": (RULE, "uint64_t{~ordered(least)}", "uint64_t{ordered(least)}"),
    "the request decides before the position": (RULE, "uint64_t(i * a.B + b)", "uint64_t(b * a.G + i)"),
    "equal slots are all taken": (RULE, "return found | ~known;", "return found | 0xffffffffu;"),
    "one slot more": (RULE, "find_last(a, int(a.total), s, lanes)", "find_last(a, int(a.total) + 1, s, lanes)"),
    "smaller digits are not counted": (RULE, "wanted -= s.before;", ""),
    "digits of other keys are counted": (RULE, "if ((key & known) == found) lanes", "lanes"),
    "a budget of 0 keeps all": (RULE, "a.kept[b] = none ? 0 : n;", "a.kept[b] = n;"),
    "the last slot is left": (RULE, "n += key <= last;", "n += key < last;"),
}
