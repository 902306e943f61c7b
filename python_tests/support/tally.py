# SPDX-License-Identifier: Apache-2.0
"""Counts, by backend, of the requests that the session compared with the reference, and of those that differ.

A request may differ only inside the band: its margin is so small that rounding may decide.
"""

import math
from collections import Counter

CAP = 1e-4  # share of requests that may differ from the reference, all of them inside the computed band

running = None  # the backend of the current test
compared, flipped, tests, seconds = Counter(), Counter(), Counter(), Counter()
notes = []  # measured numbers that the session prints at its end


def record(requests, flips):
    """Count a comparison with the reference; fail if more requests differ than the cap allows (one always may)."""
    if running is not None:
        compared[running] += requests
        flipped[running] += flips
    assert flips <= allowed(requests), f"{flips} flips inside the band in {requests} requests"


def allowed(requests):
    return math.ceil(CAP * requests)


def state():
    """Return this process's counts, for the process that reports."""
    return [dict(compared), dict(flipped), notes]


def merge(state):
    """Add the counts of another process of the session."""
    compared.update(state[0])
    flipped.update(state[1])
    notes.extend(state[2])


def over_the_cap():
    """Return the backends that differ too often over the whole session."""
    return [name for name in compared if flipped[name] > allowed(compared[name])]


def lines():
    yield (
        f"{'backend':<20}{'tests':>6}{'seconds':>9}{'requests compared':>19}"
        f"{'flips in the band':>19}{'share':>10}{'cap':>9}"
    )
    for name in [*tests, "all"]:
        n, s, c, f = (x[name] if name != "all" else x.total() for x in (tests, seconds, compared, flipped))
        yield f"{name:<20}{n:>6}{s:>9.1f}{c:>19}{f:>19}{f'{f / c:.1e}' if c else '-':>10}{CAP:>9.0e}"
