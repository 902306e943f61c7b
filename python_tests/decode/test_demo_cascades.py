# SPDX-License-Identifier: Apache-2.0
"""demo.cascades: its numbers on small models equal the theory's and a plain pass's, finished parts are kept, and the
docs quote its measurements."""

import argparse
import json
import re
from pathlib import Path

import pytest
import torch
from support import tiny

from demo import cascades, parts
from specdec_kernels import decode, theory

pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("rule, alpha", [("chow", 0.6), ("diff", 0.1), ("opt", 0.2), ("token_v3", 0.7)])
def test_deferral_is_the_theorys(rule, alpha):
    generator = torch.Generator().manual_seed(0)
    z, y = (1.7 * torch.randn(300, 12, generator=generator) for _ in range(2))
    want = theory.deferral_rate(z.double().softmax(-1), y.double().softmax(-1), rule, alpha)
    assert torch.allclose(cascades.deferral(rule, alpha, z, y).double(), want, atol=1e-5) and 0.1 < want.mean() < 0.9


@pytest.mark.parametrize(
    "setting", [("speculative", "exact", None), ("speculative", "chow", 0.7), ("plain", "chow", 0.7)]
)
def test_counts_of_a_setting(setting):
    """Counts equal those of the whole text read at once. A plain cascade's target calls are the deferrals of its
    text."""
    hf, target, draft = tiny.served()["lean"]
    pair = decode.Pair(target, None, (), draft)
    prompts = [r.prompt for r in tiny.requests(3)]
    scorer = cascades.Scorer(pair, prompts, 16)
    counts = cascades.decoded(pair, scorer, 16, 2, 3, *setting)
    assert counts == cascades.decoded(pair, scorer, 16, 2, 3, *setting)  # a scorer may be used again
    drafter = decode.TokenCascade(draft) if setting[0] == "plain" else decode.ModelDrafter(draft, 3)
    for i, (prompt, found) in enumerate(zip(prompts, counts)):
        request = decode.Request(prompt, 16, 1.0, rule=setting[1], alpha=setting[2], seed=i)
        tokens = decode.generate(target, [request], drafter).results[0].tokens
        with torch.inference_mode():
            rows = hf(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].log_softmax(1)
        row = dict(zip(cascades.FIELDS, found))
        assert row["logprob"] == pytest.approx(rows.gather(1, torch.tensor(tokens)[:, None]).sum().item(), abs=2e-3)
        assert row["new_tokens"] == 16 and 0 < row["calls"] <= 16
        if setting[0] == "plain":
            assert row["deferred"] == row["calls"] == 16 - row["accepted"]


def test_finished_parts_are_kept(tmp_path, monkeypatch):
    """Four runs: one is cut off, one has no time left, one does the rest, and one finds nothing to do. With another
    draft everything is measured again."""
    pair = decode.Pair(tiny.served()["lean"][1], None, (), None)
    monkeypatch.setattr(parts.decode, "load_pair", lambda *names: pair)
    out, seen = tmp_path / "kept.json", []

    def go(seconds, second):
        def todo(data):
            todo = {"first": lambda ready: seen.append(ready) or [1], "second": second}
            return [(data["decode"], name, part) for name, part in todo.items() if name not in data["decode"]]

        args = argparse.Namespace(seconds=seconds, threads=1, out=out, tokens=4, batch=2)
        parts.run(
            args,
            {"decode": {}},
            todo,
            lambda pair: (pair,),
            lambda console, data: None,
            lambda data, path: seen.append(path.name),
        )
        return json.loads(out.read_text())["decode"]

    def cut(ready):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go(1e9, cut)
    assert go(-1, cut) == {"first": [1]} and seen == [(pair,), "kept.png"]
    assert go(1e9, lambda ready: [2]) == go(1e9, cut) == {"first": [1], "second": [2]} and seen == [
        (pair,),
        *3 * ["kept.png"],
    ]
    monkeypatch.setattr(parts, "weights", lambda: "of another draft")
    assert go(0, cut) == {"first": [1], "second": [2]}
    assert go(1e9, lambda ready: [3]) == {"first": [1], "second": [3]} and seen.count((pair,)) == 2


def measured():
    return json.loads((ROOT / "demo/cascades.json").read_text())["decode"]


def test_the_page_of_numbers_quotes_the_measurement():
    data = measured()
    rows = re.findall(
        r"^\| (speculative|plain) \| `(\w+)` \| ([\d.]*) \| ([^\n]*) \|$", (ROOT / "docs/numbers.md").read_text(), re.M
    )
    assert len(rows) >= 8 and set(data) == {cascades.key(*setting) for setting in cascades.settings()}
    for cascade, rule, alpha, quoted in rows:
        counts = data[cascades.key(cascade, rule, float(alpha) if alpha else None)]
        assert len(counts) == 64 and quoted.split(" | ") == cascades.columns(counts), (cascade, rule, alpha)


@pytest.mark.parametrize("alpha", [0.2, 0.4, 0.6])
def test_speculation_pays_in_a_cascade(alpha):
    """In the recorded measurement, a speculative cascade calls the target less often per token than a plain one with
    the same rule, with 95% intervals apart. At alpha 0.6 the intervals may overlap."""
    calls = {c: cascades.numbers(measured()[cascades.key(c, "chow", alpha)])["calls"] for c in ("speculative", "plain")}
    assert calls["speculative"][2] < calls["plain"][1] if alpha < 0.5 else calls["speculative"][1] < calls["plain"][2]
