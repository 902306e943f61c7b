# SPDX-License-Identifier: Apache-2.0
"""The tiers of the tests. SPECDEC_TEST names the tier of a run; TIERS.md has what each is for and how long it takes.

check   only the CPU, without tests marked `slow` or `thorough`: to run while working
test    the default: on the CPU every test except those marked `thorough`; on the simulated devices, of these tests,
        every kernel and every value of every parameter
all     every combination on every backend, tests marked `thorough` too, all mutants of the sources

A test is in every tier unless a mark excludes it. `slow`: not in check. `thorough`: only in all. `law`: it draws many
tokens to test their distribution; it never runs on simulated devices, which agree token by token with the reference.
`one_backend`: it tests the op's wrapper or schema, and its result on one backend holds for all; simulated devices run
it only in all. `slow_in_triton`: interpreted Triton runs it only in all. `not_triton`: Triton does not support what it
tests.
"""

import os
from itertools import groupby

TIER = os.environ.get("SPECDEC_TEST", "test")
if TIER not in ("check", "test", "all"):
    raise ValueError(f"SPECDEC_TEST must be check, test or all, got {TIER}")
if TIER == "all":
    os.environ["SPECDEC_THOROUGH"] = "1"
SIMULATED = ("cuda-on-cpu", "triton-interpret")
FIXTURES = ("backend", "op_backend", "sweep_backend", "isa_backend", "racer")


# ---- draws of the decode loop, which takes a millisecond a token: half as many outside the tier `all` ---------------


def draws(n):
    return n if TIER == "all" else n // 2


def shift(least):
    """Return the shift in total variation that draws(n) must detect, where n draws detect `least`."""
    return least if TIER == "all" else least * 2**0.5


# ---- pairs of which a test takes some in turn -----------------------------------------------------------------------

TURN = int(os.environ.get("SPECDEC_SEED", "0"))


def in_turn(rows, columns):
    """Return every pair (row, column). Below the tier `all` each row has every other column, by SPECDEC_SEED."""
    every = [(i + j, (row, column)) for i, row in enumerate(rows) for j, column in enumerate(columns)]
    return [pair for place, pair in every if TIER == "all" or (place + TURN) % 2 == 0]


# ---- which tests a tier takes ---------------------------------------------------------------------------------------


def values(item):
    """Return the values that a test gets, a tuple for each parametrize mark: its names, then the values' identities."""
    given = item.callspec.params if hasattr(item, "callspec") else {}
    names = [mark.args[0] for mark in item.iter_markers("parametrize")]
    split = [[x.strip() for x in one.split(",")] if isinstance(one, str) else list(one) for one in names]
    return {(*one, *(id(given[name]) for name in one)) for one in split if given.keys() >= set(one)}


def backend_of(item):
    callspec = getattr(item, "callspec", None)
    return None if callspec is None else next((callspec.params[f] for f in FIXTURES if f in callspec.params), None)


def each_value_once(combinations):
    """Return the indices of a few of these sets whose union is the union of all, chosen greedily."""
    wanted, taken = set().union(*combinations), []
    while wanted:
        best = max(range(len(combinations)), key=lambda i: len(wanted & combinations[i]))
        wanted -= combinations[best]
        taken.append(best)
    return taken or [0]


def in_tier(item, tier):
    marks = {mark.name for mark in item.iter_markers()}
    backend = backend_of(item)
    if ("law" in marks and backend in SIMULATED) or ("not_triton" in marks and str(backend).startswith("triton")):
        return False
    if tier == "all":
        return True
    if "thorough" in marks or (tier == "check" and "slow" in marks):
        return False
    return not (
        ("one_backend" in marks and backend in SIMULATED)
        or ("slow_in_triton" in marks and backend == "triton-interpret")
    )


def select(items, tier=TIER):
    """Return the items of a tier, in their order."""
    items = [item for item in items if in_tier(item, tier)]
    if tier == "all":
        return items
    kept = set()
    for (backend, _), group in groupby(sorted(range(len(items)), key=lambda i: key(items[i])), lambda i: key(items[i])):
        group = list(group)
        few = each_value_once([values(items[i]) for i in group]) if backend in SIMULATED else range(len(group))
        kept |= {group[i] for i in few}
    return [item for i, item in enumerate(items) if i in kept]


def key(item):
    """Return a key that is equal for items of one backend that differ only in their other parameters."""
    return str(backend_of(item)), item.nodeid.split("[")[0]
