# SPDX-License-Identifier: Apache-2.0
"""demo.adaptive: its intervals, and a whole measurement on tiny models."""

from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from support import tiny

from demo import adaptive
from demo.run import Setting

pytestmark = pytest.mark.usefixtures("one_thread")


def test_intervals():
    """The interval of 9 values reaches from the second lowest to the second highest. It misses the median with
    probability 2 (1 + 9) / 2^9 = 3.9%. Of 6 values it is the whole range (3.1%); of 15 it begins at the fourth
    (3.5%)."""
    assert adaptive.interval(range(9)) == (1, 7)
    assert adaptive.interval(range(6)) == (0, 5) and adaptive.interval(range(15)) == (3, 11)


def test_intervals_hold_what_they_say():
    rng = np.random.default_rng(0)
    found = [adaptive.interval(rng.standard_cauchy(9)) for _ in range(2000)]
    missed = sum(not low <= 0 <= high for low, high in found)
    assert 40 < missed < 120  # 3.9% of 2,000 is 78, with a standard error of 8.7


@pytest.mark.slow
def test_a_measurement():
    """Every side decodes the same requests in each round."""
    _, target, draft = tiny.served()["lean"]
    pair = SimpleNamespace(target=target, draft=draft, eos=())
    prompts = [r.prompt for r in tiny.requests()][:2]
    sides = adaptive.sides(pair, SimpleNamespace(tree="traversal", fixed=True))
    assert list(sides)[:3] == ["plain", "adaptive", "traversal"] and len(sides) == 11
    rounds = adaptive.measure(Setting(pair, prompts, 8, 2, 1.0), sides, 3, lambda: None)
    assert {len(stats) for stats in rounds.values()} == {3}
    assert all(s.new_tokens == 16 for stats in rounds.values() for s in stats)
    assert all(s.drafted == 0 for s in rounds["plain"]) and all(s.drafted for s in rounds["2"])
    assert adaptive.ratios(rounds, "plain") == [1.0] * 3
    console = Console(record=True, width=120)
    adaptive.report(console, [(Setting(pair, prompts, 8, 2, 1.0), rounds)])
    text = console.export_text()
    assert "batch 2" in text and "adaptive / " in text and "lookup, 6" in text
