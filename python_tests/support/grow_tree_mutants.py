# SPDX-License-Identifier: Apache-2.0
"""grow_tree's sources with one error: name -> (file, its text, the mutant's text)."""

RULE, CUDA = "ops/grow_tree/grow_tree.h", "ops/grow_tree/grow_tree_cuda.cu"

SOURCES = {
    "a log_q above 0 is a candidate": (RULE, "return x <= 0 &&", "return x == x &&"),
    "negative ids are tokens": (RULE, "v >= 0 && v < kIdsEnd", "v < kIdsEnd"),
    "ids from 2^24 on are tokens": (RULE, "v >= 0 && v < kIdsEnd", "v >= 0"),
    "a token may stand twice at a level": (RULE, "if (s.order[i]) s.cost[i] = HUGE_VALF;", ""),
    "of equal candidates the last comes first": (RULE, "int(i < other)", "int(i > other)"),
    "the worst candidate comes first": (RULE, "return int(x < other_x) |", "return int(x > other_x) |"),
    "rank decides before depth": (RULE, "level << 20 | rank << 10 | parent", "rank << 20 | level << 10 | parent"),
    "a child costs what its candidate does": (RULE, "cost + s.cost[i]", "s.cost[i]"),
    "an infinite cost is a node": (RULE, "return sum < HUGE_VALF ?", "return sum <= HUGE_VALF ?"),
    "one sibling is skipped": (RULE, "level, rank + 1, parent)", "level, rank + 2, parent)"),
    "children are of the same level": (RULE, "key.cost(), level + 1, 0, n)", "key.cost(), level, 0, n)"),
    "the tree has one node less": (RULE, "n < a.nodes; ++n", "n + 1 < a.nodes; ++n"),
    "padding holds the root's first child": (RULE, "i > 0 && i < s.count", "i > 0"),
    "a lane forgets its other nodes": (CUDA, "i = lane; i < size; i += kLanes", "i = lane; i < kLanes; i += kLanes"),
}  # fmt: skip
