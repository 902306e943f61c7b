# SPDX-License-Identifier: Apache-2.0
"""What a rule makes of a node (csrc/ops/verify_tree/node_dist.h). A program serves one request where there are rules: its vectors have one
entry, and the rules take it alone."""

import triton
import triton.language as tl

from ..core import pair
from ..core.mixture import put_p, put_pi
from ..rules.confidence import confidence
from ..rules.rule_dist import complete, is_p, make_law
from ..rules.rule import EXACT, LOSSY, THRESHOLDS, asks_of, is_of_log, replaces_target, rule_of
from ..core.side import is_something, is_valid, offset_of, one_hot
from .tree import INSIDE, Tests, entry, next_test, some
from .walk import draft_law


@triton.jit
def rule_here(rules, THRESHOLDS_ALONE: tl.constexpr):
    """The rule of this program's request and its parameters; one that the method does not take is the exact rule."""
    rule, alpha = rule_of(rules, tl.program_id(0).to(tl.int64))
    takes = rule == THRESHOLDS if THRESHOLDS_ALONE else replaces_target(rule)
    return tl.where(takes, rule, EXACT), alpha


@triton.jit
def alone(x):
    return tl.sum(x, 0)


@triton.jit
def alone_dist(side, d):
    row = alone(d.row)
    offset = offset_of(side, tl.program_id(0).to(tl.int64), row)
    return pair.Dist(row >= 0, offset, alone(d.hot), alone(d.scale), alone(d.cutoff), alone(d.log_norm), alone(d.most))


@triton.jit
def pi_of(rule, alpha, target, draft, p, q, S):
    """The law that a rule puts in place of p, as a whole; p itself unless both rows are laws."""
    on = rule != EXACT
    asks_p, asks_q = asks_of(rule, on, target.PROBS, draft.PROBS)
    if target.PROBS:
        asks_p = on
    if draft.PROBS:
        asks_q = on
    least = tl.full([], float("inf"), tl.float32)
    of_p = confidence(target, p, False, least, asks_p, is_of_log(rule), S)
    of_q = confidence(draft, q, False, least, asks_q, is_of_log(rule), S)
    on = (of_p.largest > 0) & (of_q.largest > 0)
    return complete(target, draft, p, q, make_law(rule, alpha, target, draft, p, q, of_p, of_q, on), alpha, on, S)


@triton.jit
def stand(tree, rows, rule, alpha, b, node, depth, p, at, known, known_row, on, S):
    """At a node whose law is p: puts what stands for it before the links at `at`, made of p and the row that the first child under test
    was drawn from. Returns whether that is p itself, and the law that is known now, of which row."""
    nothing = one_hot(node * 0 - 1)
    put_p(rows, at, nothing, on)
    plain = on
    if rule != EXACT:
        child, _, _ = next_test(tree, b, node, depth, Tests(node * 0, node * 0), node * 0 + INSIDE, on)
        tested = on & (child >= 0) & is_valid(rows.target, p)
        if rule == LOSSY:  # a greedy target stays what it is, and q is not read
            tested = tested & (p.hot < 0)
        token = entry(tree.tokens, b * tree.N + child, tested)
        q, _, known, known_row = draft_law(tree, rows, b, child, token, known, known_row, tested, S)
        if some(tested & is_something(q)):
            pi = pi_of(rule, alpha.first, rows.target, rows.draft, alone_dist(rows.target, p), alone_dist(rows.draft, q), S)
            put_pi(rows, at, pi, q, on)
            if ~is_p(pi):
                plain = plain & False
    return plain, known, known_row
