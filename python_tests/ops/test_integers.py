# SPDX-License-Identifier: Apache-2.0
"""Every integer argument of every public function as int32 and as int64: the same results and errors, at ordinary
values and at the ends of int32. The arguments are found from the functions' own error texts."""

import functools
import inspect
import re

import pytest
import torch
from support import backends, flat, tiers
from support.surface import same, tensors
from torch.nn.attention.flex_attention import create_mask

import specdec_kernels as sk
from specdec_kernels import example_calls
from specdec_kernels.registry import FUNCTIONS

CALLS = {op: flat.dotted_calls(op, V=11) for op in FUNCTIONS}
PARTS = {"tree": ("parents", "tokens", "", "draft_nodes"), "links": ("first_child", "next_sibling")}
WIDE = {"seed", "offset"}  # these need 64 bits: int32 is refused
NARROW = {"ids", "counts"}  # lists, which are int32 only
LEAST, LARGEST = torch.iinfo(torch.int32).min, torch.iinfo(torch.int32).max
HOSTILE = (LEAST, -1, LARGEST)


def is_integer(x):
    return isinstance(x, torch.Tensor) and x.dtype in (torch.int32, torch.int64)


def places(call):
    """Yield (argument, part of a tuple or None) for every integer tensor."""
    for name, x in call.items():
        if is_integer(x) and name not in NARROW:
            yield name, None
        elif name in PARTS:
            yield from ((name, i) for i, part in enumerate(x) if is_integer(part) and PARTS[name][i])


def name_of(place):
    name, part = place
    return name if part is None else PARTS[name][part]


def value(call, place):
    name, part = place
    return call[name] if part is None else call[name][part]


def replaced(call, place, x):
    name, part = place
    return call | {name: x if part is None else (*call[name][:part], x, *call[name][part + 1 :])}


def with_dtype(call, dtype, but=()):
    """Return the call with all integers that fit int32 as `dtype`; those named `but` stay unchanged."""
    for place in places(call):
        if name_of(place) not in but:
            call = replaced(call, place, value(call, place).clamp(LEAST, LARGEST).to(dtype))
    return call


def called(op, **call):
    return flat.call_dotted(op, call)


def outcome(op, call):
    """Return a call's tensors, or its error text without dtypes."""
    try:
        found = example_calls.outcome(op, functools.partial(called, op), **call)
    except ValueError as error:
        return re.sub(r"int32|int64", "", str(error))
    if op == "tree_mask_mod":
        B, N = call["parents"].shape if call["parents"].dim() == 2 else (1, call["parents"].size(0))
        found = create_mask(found, B, None, N, N + 15, device=call["parents"].device)
    return tensors(found)


def outcomes(op, call, place=None):
    """Return the outcomes of a call with its integers, or one of them, as int32 and as int64."""
    but = WIDE if place is None else {name_of(each) for each in places(call)} - {name_of(place)}
    return [outcome(op, with_dtype(call, dtype, but)) for dtype in (torch.int32, torch.int64)]


def agree(narrow, wide):
    return narrow == wide if isinstance(narrow, str) or isinstance(wide, str) else same(narrow, wide)


def called_integers(op):
    """Return the names of the arguments, or parts of tuples, that a function requires to be integers. Each is found by
    giving it a tensor of another kind."""
    found = set()
    for call in CALLS[op]:
        for name in flat.dotted_names(op):
            parts = range(len(call.arguments[name])) if name in PARTS and name in call.arguments else [None]
            for part in parts:
                given = call.arguments if part is not None else call.arguments | {name: None}
                own = value(call.arguments, (name, part)) if name in call.arguments else None
                bad = own.bool() if isinstance(own, torch.Tensor) else torch.zeros(3, dtype=torch.bool)
                try:
                    flat.call_dotted(op, replaced(given, (name, part), bad))
                except (TypeError, ValueError, RuntimeError) as error:
                    wanted = re.match(rf"{op}: ([\w.]+) must be (?:.* )?(?:int32 or )?int64, got bool", str(error))
                    found |= {wanted[1]} if wanted else set()
    return found


@pytest.mark.parametrize("op", FUNCTIONS)
def test_the_examples_give_every_integer_argument(op):
    given = {name_of(place) for call in CALLS[op] for place in places(call.arguments)}
    assert called_integers(op) == given


@pytest.mark.parametrize("op", FUNCTIONS)
def test_int32_and_int64_give_the_same(op_backend, op):
    """A call with all its integers except seed and offset as int32 gives the same results as with int64."""
    some = CALLS[op] if op_backend == "cpu" or tiers.TIER == "all" else flat.dotted_calls(op, few=True, V=11)
    if op_backend == "triton-interpret" and tiers.TIER != "all":
        some = some[:: max(1, len(some) // 4)]
    made = 0
    for call in backends.served(op_backend, op, some):
        if any(name_of(place) not in WIDE for place in places(call.arguments)):
            narrow, wide = backends.there(op_backend, outcomes, op, call.arguments)
            assert not isinstance(wide, str) and agree(narrow, wide), call.name
            made += 1
    assert made or all(name_of(place) in WIDE for call in some for place in places(call.arguments))


HOSTILE_CASES = {
    f"{op}-{name_of(place)}": (op, place, call.arguments)
    for op in FUNCTIONS
    for call in CALLS[op]
    for place in places(call.arguments)
    if name_of(place) not in WIDE
}


@pytest.mark.parametrize("case", HOSTILE_CASES)
@pytest.mark.parametrize("hostile", HOSTILE)
def test_the_ends_of_int32_as_int64(op_backend, case, hostile):
    """One extreme value of one argument: int32 and int64 give the same result with a status, or the same error."""
    op, place, call = HOSTILE_CASES[case]
    if not backends.serves(op_backend, op, call):
        pytest.skip("Triton takes no rule on a tree")
    x = value(call, place).clone().contiguous()
    x.view(-1)[-1] = hostile
    narrow, wide = backends.there(op_backend, outcomes, op, replaced(call, place, x), place)
    assert agree(narrow, wide)


@pytest.mark.parametrize("op", FUNCTIONS)
def test_int32_is_refused_where_64_bits_are_documented(op):
    refused = set()
    for call in CALLS[op]:
        for place in places(call.arguments):
            if name_of(place) in WIDE:
                narrow = replaced(call.arguments, place, value(call.arguments, place).to(torch.int32))
                with pytest.raises(ValueError, match=rf"^{op}: {name_of(place)} must be int64, got int32$"):
                    flat.call_dotted(op, narrow)
                refused.add(name_of(place))
    documented = inspect.getdoc(getattr(sk, op)) or ""
    assert all(re.search(rf"\b{name}\b[^.]*: \[\w+\] int64", documented) for name in refused)
