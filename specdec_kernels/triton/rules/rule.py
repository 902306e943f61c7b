# SPDX-License-Identifier: Apache-2.0
"""The rules of requests and their parameters (csrc/rules/rule.h, csrc/binding/rule_arguments.h), and the rules that
only decide which drafts to accept (csrc/rules/acceptance.h), for a block of requests."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..core import arguments
from ..core.memory import Values, get_value, load_value
from . import (
    CHOW,
    CHOW_LOG,
    COUNT,
    EXACT,
    LENIENCE,
    OPT_LOG,
    RELAXED,
    SYNTHETIC,
    THRESHOLDS,
    TOKEN_V1,
    TOKEN_V3,
    TYPICAL,
    numbers,
    parameter,
    rules_where,
)

REPLACES_TARGET = rules_where(lambda rule: rule.defines_distribution)
READS_DRAFT = rules_where(lambda rule: rule.reads_draft)
READS_ENTROPY = rules_where(lambda rule: rule.reads_entropy)
EXACT_AT = numbers(lambda rule: rule.exact_at, -1.0)  # no parameter has this value
LEAST, MOST, DEFAULT, OPEN_BELOW, OPEN_ABOVE = parameter(0)
SECOND_LEAST, SECOND_MOST, SECOND_DEFAULT, SECOND_OPEN_BELOW, SECOND_OPEN_ABOVE = parameter(1)


class Rules(NamedTuple):
    """One rule and its parameters for each request."""

    rule: Any  # Values; not given: exact
    alpha: Any  # [B] or [B, 2], B = 1: for all; by position [G, B, 1] or [G, B, 2]; or an Alpha; None: the defaults
    each: Any  # whether each request has its own alpha; None: alpha is not a tensor
    pairs: Any  # whether alpha holds both parameters
    positions: Any  # whether each position has its own alpha, for synthetic; others use that of position 0


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
def is_in(rule, RULES: tl.constexpr):
    """Return whether a rule is in a set of rules."""
    out = rule < 0
    for code in tl.static_range(COUNT):
        if (RULES >> code) & 1:  # comparing with each code takes fewer registers than shifting RULES by the rule
            out |= rule == code
    return out


@triton.jit
def number_of(rule, NUMBERS: tl.constexpr):
    """Return a rule's number as the float64 nearest to the decimal in the registry."""
    out = tl.full(rule.shape, NUMBERS[1], tl.float64)
    END: tl.constexpr = NUMBERS[0]
    for i in tl.static_range(2, END, 2):
        out = tl.where(is_in(rule, NUMBERS[i + 1]), tl.full([], NUMBERS[i], tl.float64), out)
    return out


@triton.jit
def replaces_target(rule):
    """Return whether the rule defines a distribution pi in place of p. Others only decide which drafts to accept."""
    return is_in(rule, REPLACES_TARGET)


@triton.jit
def reads_draft(rule):
    """Return whether the rule reads the draft's row."""
    return is_in(rule, READS_DRAFT)


@triton.jit
def reads_entropy(rule):
    return is_in(rule, READS_ENTROPY)


@triton.jit
def asks_of(rule, on, TARGET_PROBS: tl.constexpr, DRAFT_PROBS: tl.constexpr):
    """Return whether a rule that defines pi needs the confidence of the target, and that of the draft."""
    by_row = on & is_row_rule(rule)
    by_token = on & is_token_rule(rule)
    asks_target = (by_row & (rule != CHOW) & (rule != CHOW_LOG)) | by_token
    if TARGET_PROBS:
        asks_target |= by_row
    asks_draft = by_row | (by_token & (rule == TOKEN_V1))
    if DRAFT_PROBS:
        asks_draft |= by_token  # the confidence shows whether these rows are valid
    return asks_target, asks_draft


@triton.jit
def nearest(x, least, most, otherwise, open_below, open_above):
    """Return x clamped to its range; NaN becomes the default. Invalid values on a device cannot raise."""
    inside = tl.minimum(tl.maximum(x, least), most)
    inside = tl.where(open_below & (x <= least), 5.9604644775390625e-08, inside)
    inside = tl.where(open_above & (x >= most), most - 5.9604644775390625e-08, inside)
    return tl.where(x == x, inside, otherwise)


@triton.jit
def given_alpha(rules, b, mask):
    """Return both parameters of each request as given; NaN for a parameter that is not given."""
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
    """Return both parameters of each request: the given ones, clamped to their ranges, else the defaults."""
    first, second = number_of(rule, DEFAULT), number_of(rule, SECOND_DEFAULT)
    if rules.alpha is not None:
        x, y = given_alpha(rules, b, mask)
        least, most = number_of(rule, LEAST), number_of(rule, MOST)
        first = nearest(x, least, most, first, is_in(rule, OPEN_BELOW), is_in(rule, OPEN_ABOVE))
        least, most = number_of(rule, SECOND_LEAST), number_of(rule, SECOND_MOST)
        second = nearest(y, least, most, second, is_in(rule, SECOND_OPEN_BELOW), is_in(rule, SECOND_OPEN_ABOVE))
    return Alpha(first, second)


@triton.jit
def rule_of(rules, b, mask):
    """Return the rules of the requests b, and their parameters. A rule whose alpha makes it exact becomes EXACT."""
    if rules.rule.data is None:
        zero = tl.zeros(b.shape, tl.float64)
        return tl.zeros(b.shape, tl.int32), Alpha(zero, zero)
    else:
        code = load_value(rules.rule, b, mask, 0).to(tl.int64)
        rule = tl.where((code > EXACT) & (code < COUNT), code, EXACT).to(tl.int32)
        alpha = parameters_of(rules, rule, b, mask)
        return tl.where(alpha.first == number_of(rule, EXACT_AT), EXACT, rule), alpha


@triton.jit
def synthetic_rate(rules, alpha, b, i, mask):
    """Return the rate at position i. A program serves one request, so the number of programs is B."""
    if rules.each is None:
        return alpha.first
    else:
        of_position = tl.where(rules.each, tl.num_programs(0), 1) * rules.positions
        at = rules.alpha + (b * rules.each + i * of_position) * (1 + rules.pairs.to(tl.int32))
        x = get_value(at, mask, float("nan")).to(tl.float64)
        rule = b.to(tl.int32) * 0 + SYNTHETIC
        return nearest(x, number_of(rule, LEAST), number_of(rule, MOST), number_of(rule, DEFAULT), False, False)


NAN = float("nan")


@triton.jit
def accept_by_target(rule, alpha, seen, u, target):
    """Return whether a rule that reads only p accepts the draft d (csrc/rules/acceptance.h). Lenience with a greedy
    target is included: it accepts if p1(d) >= l max p1, where p1 is p at temperature 1 without filters."""
    p, of_p, p_d = seen.position.p, seen.of_p, seen.p
    typical = (p_d > alpha.first) | (
        (p_d > 0) & (p_d > alpha.second * tl.exp(-tl.where(p.hot >= 0, 0.0, of_p.entropy)))
    )
    if target.PROBS:
        p1_d = p_d
    else:  # valid for every tested draft, since its position has a row
        p1_d = tl.exp(seen.z.to(tl.float64) - of_p.max) * of_p.largest
        typical |= (p_d > 0) & (p.hot < 0) & (p_d > alpha.second * tl.exp(-p.stats.log_norm.to(tl.float64)))
    relaxed = (p1_d > 0) & (p1_d >= of_p.largest - alpha.second) & (of_p.above.to(tl.float64) < alpha.first)
    thresholds = (p_d >= alpha.first) | (u * alpha.second < p_d)
    lenient = (p.hot >= 0) & (seen.z.to(tl.float64) - p.stats.max.to(tl.float64) >= tl.log(alpha.first))
    accepted = (rule == TYPICAL) & typical
    accepted |= (rule == RELAXED) & relaxed
    accepted |= (rule == THRESHOLDS) & thresholds
    return accepted | ((rule == LENIENCE) & lenient)


def rules_of(rule, alpha, numbers) -> Rules:
    """Return the Rules of a call, from tensors or from `numbers`.

    rule: [B] or [1]. alpha: [B] or [B, 2], or for a chain's G positions [B, G, 1] or [B, G, 2].
    """
    code, *of_alpha = arguments.numbers(numbers, 3)
    codes = arguments.values(rule) if code is None else Values(code, None)
    if of_alpha != [None, None]:
        return Rules(codes, Alpha(*(NAN if x is None else x for x in of_alpha)), None, False, False)
    if alpha is None or not alpha.numel():
        return Rules(codes, None, None, False, False)
    each, pairs, positions = alpha.size(0) != 1, alpha.dim() > 1 and alpha.size(-1) == 2, alpha.dim() == 3
    return Rules(codes, (alpha.transpose(0, 1) if positions else alpha).contiguous(), each, pairs, positions)
