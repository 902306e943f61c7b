# SPDX-License-Identifier: Apache-2.0
"""demo.trees: its numbers on small rows against the theory, its intervals, and that the docs quote its measurements."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from demo import trees
from specdec_kernels import theory

ROOT = Path(__file__).parents[2]


def test_row_acceptance_is_the_theorys():
    """Rates equal the theory's. Without replacement they are measured by drawing and verifying, and lie within five
    standard errors of the enumeration (a yes-or-no draw has a standard deviation of at most 1/2)."""
    generator = torch.Generator().manual_seed(0)
    z, y = (1.5 * torch.randn(3, 12, generator=generator) for _ in range(2))
    p, q = z.double().softmax(-1), y.double().softmax(-1)
    found = trees.one_prompt(z, y, draws=2000)
    for i, K in enumerate(trees.KS):
        for rule in ("kseq", "recursive"):
            assert found[rule][i] == pytest.approx(theory.multi_draft_acceptance(p, q, K, rule).mean().item(), abs=1e-6)
        assert found["optimum"][i] >= found["kseq"][i] - 1e-6 and found["target_only"][i] <= 1
        if K <= 4:
            exact = theory.multi_draft_acceptance(p, q, K, "recursive_without_replacement").mean().item()
            assert abs(found["recursive_without_replacement"][i] - exact) < 5 * 0.5 / math.sqrt(6000)


def test_intervals_hold_what_they_say():
    """The 95% interval misses the true ratio of sums in 1% to 12% of 200 samples of 40 prompts."""
    rng, missed = np.random.default_rng(1), 0
    for _ in range(200):
        rows = rng.integers(5, 40, 40)
        counts = [[int(rng.poisson(2.0 * n)), int(n), 0, 1, 0] for n in rows]
        _, low, high = trees.interval(counts, "new_tokens", "rows", resamples=400)
        missed += not low <= 2.0 <= high
    assert 2 <= missed <= 24


def test_the_page_of_numbers_quotes_the_measurement():
    data = json.loads((ROOT / "demo/trees.json").read_text())
    table = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| (\d[^\n]*) \|$", (ROOT / "docs/numbers.md").read_text(), re.M))
    for method in ("chain", *trees.METHODS):
        counts = data["decode"][trees.key(method, 1 if method == "chain" else 4, 4)]
        assert len(counts) == 164 and table[method].split(" | ") == trees.columns(counts), method


@pytest.mark.parametrize("method", ["kseq", "recursive_without_replacement"])
def test_measured_gain_over_the_chain(method):
    """Four drafts of four tokens emit more per target call than one, with 95% intervals apart."""
    data = json.loads((ROOT / "demo/trees.json").read_text())["decode"]
    low = trees.interval(data[trees.key(method, 4, 4)], "new_tokens", "rows")[1]
    assert low > trees.interval(data[trees.key("chain", 1, 4)], "new_tokens", "rows")[2]
