# SPDX-License-Identifier: Apache-2.0
"""How much a run tries. SPECDEC_TEST names the tier; TIERS.md says what each is for and how long it takes.

check   CPU alone, without tests marked `slow`: what one runs while working
test    the default: everything on the CPU, and on the simulated devices every kernel and every value of every parameter
all     every combination on every backend, tests marked `thorough` too, all mutants of the sources

A test is in every tier unless a mark says otherwise: `slow` (not in check), `thorough` (in all only), `law` (it draws
many tokens to prove the law they follow: never on simulated devices, which agree token by token with the reference),
`one_backend` (it proves something of the op's wrapper or schema, and what it proves of one backend holds for all:
simulated devices run it in all only), `slow_in_triton` (interpreted Triton runs it in all only), `not_triton` (Triton
does not serve what it tests).
"""

import os
from itertools import groupby

TIER = os.environ.get("SPECDEC_TEST", "test")
if TIER not in ("check", "test", "all"):
    raise ValueError(f"SPECDEC_TEST must be check, test or all, got {TIER}")
if TIER == "all":
    os.environ["SPECDEC_THOROUGH"] = "1"
SIMULATED = ("cuda-on-cpu", "triton-interpret")
FIXTURES = ("backend", "op_backend", "sweep_backend", "isa_backend")


def values(item):
    """What each of a test's parametrize marks gives it, as (names, the values' identities)."""
    given = item.callspec.params if hasattr(item, "callspec") else {}
    names = [mark.args[0] for mark in item.iter_markers("parametrize")]
    split = [[x.strip() for x in one.split(",")] if isinstance(one, str) else list(one) for one in names]
    return {(*one, *(id(given[name]) for name in one)) for one in split if given.keys() >= set(one)}


def backend_of(item):
    callspec = getattr(item, "callspec", None)
    return None if callspec is None else next((callspec.params[f] for f in FIXTURES if f in callspec.params), None)


def each_value_once(combinations):
    """The places of a few of these sets which hold all that any of them holds, taken greedily."""
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
    """The items of a tier, in their order."""
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
    """Items that differ by their parameters alone have one key."""
    return str(backend_of(item)), item.nodeid.split("[")[0]
