# SPDX-License-Identifier: Apache-2.0
"""What a request asks of its drafts: the rules, and the parameters they take (csrc/rules/rule.h). All of it for a block
of requests."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..core.memory import get_value
from ..core.row import FLT_MAX, load_value

EXACT = tl.constexpr(0)
CHOW = tl.constexpr(1)
CHOW_LOG = tl.constexpr(2)
DIFF_LOG = tl.constexpr(4)
OPT = tl.constexpr(5)
OPT_LOG = tl.constexpr(6)
TOKEN_V1 = tl.constexpr(7)
TOKEN_V3 = tl.constexpr(9)
LENIENCE = tl.constexpr(10)
LOSSY = tl.constexpr(11)
ENSEMBLE = tl.constexpr(12)
TYPICAL = tl.constexpr(13)
RELAXED = tl.constexpr(14)
SYNTHETIC = tl.constexpr(15)
THRESHOLDS = tl.constexpr(16)


class Rules(NamedTuple):
    """One rule and its parameters for each request."""

    rule: Any  # Values; without data: exact
    alpha: Any  # [B] or [B, 2], or one for all of them, of each position behind one another; Alpha; None: the defaults
    each: Any  # whether alpha is each request's own; None: it is no tensor
    pairs: Any  # whether the second parameter stands beside the first
    positions: Any  # whether alpha is each position's own: of synthetic; the others take the first one's


class Alpha(NamedTuple):
    first: Any
    second: Any


@triton.jit
def is_row_rule(rule):
    return (rule >= CHOW) & (rule <= OPT_LOG)


@triton.jit
def is_token_rule(rule):
    return (rule >= TOKEN_V1) & (rule <= TOKEN_V3)


@triton.jit
def is_of_log(rule):
    return (rule == CHOW_LOG) | (rule == DIFF_LOG) | (rule == OPT_LOG)


@triton.jit
def replaces_target(rule):
    """Whether the rule puts a law pi in the place of p. The others say when to accept, and nothing of a law."""
    return (rule <= TOKEN_V3) | (rule == LOSSY) | (rule == ENSEMBLE)


@triton.jit
def reads_draft(rule):
    """Whether the draft's row has a say in what is accepted or emitted."""
    return replaces_target(rule) | (rule == LENIENCE)


@triton.jit
def asks_of(rule, on, TARGET_PROBS: tl.constexpr, DRAFT_PROBS: tl.constexpr):
    """Whether a rule that is a law asks how sure the target is, and the draft."""
    by_row = on & is_row_rule(rule)
    by_token = on & is_token_rule(rule)
    asks_target = (by_row & (rule != CHOW) & (rule != CHOW_LOG)) | by_token
    if TARGET_PROBS:
        asks_target |= by_row
    asks_draft = by_row | (by_token & (rule == TOKEN_V1))
    if DRAFT_PROBS:
        asks_draft |= by_token  # whether they are a law
    return asks_target, asks_draft


@triton.jit
def nearest(x, least, most, otherwise, open_below, open_above):
    """A value on a device cannot raise: outside its range it becomes the nearest inside, and NaN the default."""
    inside = tl.minimum(tl.maximum(x, least), most)
    inside = tl.where(open_below & (x <= least), 5.9604644775390625e-08, inside)
    inside = tl.where(open_above & (x >= most), most - 5.9604644775390625e-08, inside)
    return tl.where(x == x, inside, otherwise)


@triton.jit
def choose(condition, a, b):
    """In float64, as decimal as it is written."""
    return tl.where(condition, tl.full([], a, tl.float64), tl.full([], b, tl.float64))


@triton.jit
def given_alpha(rules, b, mask):
    """Both parameters, NaN where one is not given."""
    if rules.each is None:
        nothing = tl.zeros(b.shape, tl.float32)
        return (nothing + rules.alpha.first).to(tl.float64), (nothing + rules.alpha.second).to(tl.float64)
    else:
        at = rules.alpha + b * rules.each * (1 + rules.pairs.to(tl.int32))
        first = get_value(at, mask, float("nan"))
        second = get_value(at + 1, mask & rules.pairs, float("nan"))
        return first.to(tl.float64), second.to(tl.float64)


@triton.jit
def parameters_of(rules, rule, b, mask):
    """What is given, else the defaults."""
    typical = rule == TYPICAL
    strict = (rule == LENIENCE) | (rule == ENSEMBLE) | (rule == RELAXED) | (rule == THRESHOLDS)
    first = tl.where(typical, tl.full([], 0.09, tl.float64), choose(strict, 1.0, 0.0))
    second = tl.where(typical, tl.full([], 0.3, tl.float64), choose(rule == THRESHOLDS, 1.0, 0.0))
    if rules.alpha is not None:
        x, y = given_alpha(rules, b, mask)
        unbounded = is_of_log(rule) | (rule == OPT) | (rule == RELAXED)
        open_below = (rule == LENIENCE) | (rule == THRESHOLDS)
        least, most = choose(rule == RELAXED, 1.0, 0.0), choose(unbounded, FLT_MAX, 1.0)
        first = nearest(x, least, most, first, open_below, rule == LOSSY)
        zero = tl.full([], 0.0, tl.float64)
        second = nearest(y, zero, choose(typical, FLT_MAX, 1.0), second, rule == THRESHOLDS, False)
    return Alpha(first, second)


@triton.jit
def rule_of(rules, b, mask):
    """The rules of the requests b and their parameters. A rule at the end where it is the exact one, is it."""
    if rules.rule.data is None:
        zero = tl.zeros(b.shape, tl.float64)
        return tl.zeros(b.shape, tl.int32), Alpha(zero, zero)
    else:
        code = load_value(rules.rule, b, mask, 0).to(tl.int64)
        rule = tl.where((code > EXACT) & (code <= THRESHOLDS), code, EXACT).to(tl.int32)
        alpha = parameters_of(rules, rule, b, mask)
        first = alpha.first
        end = ((rule == LOSSY) & (first == 0)) | (((rule == LENIENCE) | (rule == ENSEMBLE)) & (first == 1))
        return tl.where(end, EXACT, rule), alpha


@triton.jit
def synthetic_rate(rules, alpha, b, i, mask):
    """At position i; a program is a request."""
    if rules.each is None:
        return alpha.first
    else:
        of_position = tl.where(rules.each, tl.num_programs(0), 1) * rules.positions
        at = rules.alpha + (b * rules.each + i * of_position) * (1 + rules.pairs.to(tl.int32))
        x = get_value(at, mask, float("nan")).to(tl.float64)
        zero = tl.full([], 0.0, tl.float64)
        return nearest(x, zero, zero + 1.0, zero, False, False)
