# SPDX-License-Identifier: Apache-2.0
"""The arguments of public functions that may be Python numbers, read from their signatures, and calls with them."""

import inspect
import re

import torch
from support import flat

import specdec_kernels as sk
from specdec_kernels.registry import FUNCTIONS, INF, RULES, SAMPLING

V = 37
COMPOSED = {"alpha"}  # the rule determines how many numbers it takes


def named(op, kinds):
    """Return the parameters, and the sampling parameters of their Rows, whose annotation has one of these words."""
    annotations = {x.name: x.annotation for x in inspect.signature(getattr(sk, op)).parameters.values()}
    for side in flat.SIDES.get(op, ()):
        own = {name: y for name, y in sk.Rows.__annotations__.items() if name in SAMPLING}
        annotations |= {f"{side}.{name}": getattr(y, "__forward_arg__", y) for name, y in own.items()}
    return [x for x, y in annotations.items() if re.search(rf"\b({kinds})\b", str(y)) and x not in COMPOSED]


def base(name):
    return name.rpartition(".")[2]


def is_number(x):
    return isinstance(x, (int, float))


def known():
    """Return name -> a value, taken from an example, of each argument that is a number."""
    found = {}
    for op in FUNCTIONS:
        for call in flat.dotted_calls(op, V=V):
            found |= {base(name): x for name, x in call.arguments.items() if is_number(x)}
    return found | {"require_exact": False}


KNOWN = known()


def call_with(op, name):
    """Return an example call by field, with a number for this argument."""
    calls = [call.arguments for call in flat.dotted_calls(op, V=V)]
    having = [call for call in calls if is_number(call.get(name))]
    for call in having or [call | {name: KNOWN[base(name)]} for call in calls]:
        try:
            flat.call_dotted(op, call)
        except (TypeError, ValueError, RuntimeError):
            continue
        return call
    raise AssertionError(f"{op}: no example can be called with a number for {name}")


def every():
    """Return (op, name) for every number and flag."""
    return [(op, name) for op in FUNCTIONS for name in named(op, "int|float|bool")]


def inside(x, count):
    """Return `count` numbers inside a parameter's range x (registry.py), none of them at its ends."""
    low, high = max(x.low, 1e-3), min(x.high, 2.0)
    if x.low >= 1 and x.high == INF:
        low, high = x.low, x.low + 3
    return [low + (high - low) * (i + 1) / (count + 1) for i in range(count)]


def varied(name, i, count):
    """Return the i-th of `count` values of a sampling parameter: a temperature above 0, or a filter that is on."""
    return 2 + i if base(name) == "top_k" else inside(SAMPLING[base(name)], count)[i]


def of_rule(rule, i, count):
    """Return a rule's alpha, the i-th of `count`: a number, or a pair."""
    numbers = tuple(inside(x, count)[i] for x in RULES[rule].parameters)
    return numbers if len(numbers) > 1 else numbers[0]


def same_result(op, got, want):
    from support.surface import same, tensors

    if op == "tree_mask_mod":
        at = torch.arange(4)
        got, want = got(torch.tensor(0), None, at[:, None], at), want(torch.tensor(0), None, at[:, None], at)
    return same(tensors(got), tensors(want))
