# SPDX-License-Identifier: Apache-2.0
"""Drafts that are cut before verification: the text's distribution with vLLM's plugin, for each reason to cut.

Each request's text is completed to K+1 tokens by draws from the target, in float64, and compared with the target's
joint distribution by enumeration. The docs' table of cuts (docs/guide.md) has the same entries as CUTS.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from support import vllm_stub
from support.vllm_cuts import CUTS, B, K, V, World, before, compared, drawn, leading, runner_of

from specdec_kernels.integrations.vllm import cut, draft

pytestmark = pytest.mark.usefixtures("vllm_modules")


def emitted(world, name, method="standard", processed_logprobs=False):
    """Return the tokens of a step of B requests [B, K+1]."""
    grammar, _, keep = CUTS[name]
    generator = torch.Generator().manual_seed(3)
    tokens, rows = drawn(world, B, generator)
    options = {"max_num_logprobs": 1} if processed_logprobs else {}
    runner, last, metadata = runner_of(world, tokens, rows, keep(world, tokens), method, **options)
    runner.rejection_sampler.is_processed_logprobs_mode = processed_logprobs
    out = vllm_stub.sample(runner, world.masked(grammar)[last], metadata)
    if out is None:  # left to vLLM's sampler
        return torch.multinomial(world.p(grammar)[last], 1, generator=generator)
    return out.sampled_token_ids.long()


@pytest.fixture
def unmended(monkeypatch):
    """Make the plugin ignore cuts: a draft is what was scheduled."""
    places = cut.places
    monkeypatch.setattr(cut, "places", lambda *given: (places(*given)[0], np.zeros(len(given[1]), dtype=bool)))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["standard", "block"])
@pytest.mark.parametrize("name", CUTS)
def test_law_of_the_text(name, method):
    world = World()
    result = compared(emitted(world, name, method), world.p(CUTS[name][0]))
    assert result.passed and result.detects < 0.08, result


@pytest.mark.slow
@pytest.mark.usefixtures("unmended")
@pytest.mark.parametrize("name", CUTS)
def test_which_cuts_are_harmless(name):
    """Drawing from p at a cut biases the text exactly if the cut depends on the id that it removes."""
    grammar, depends, _ = CUTS[name]
    assert compared(emitted(World(), name), World().p(grammar)).passed != depends


@pytest.mark.slow
def test_law_where_vllm_prepares_the_rows():
    """With processed logprobs verification falls back to vLLM, which gets the cut drafts."""
    world = World()
    assert compared(emitted(world, "grammar", processed_logprobs=True), world.p(True)).passed


def test_logprobs_where_vllm_prepares_the_rows():
    """Logprobs are in the scheduled layout: the i-th token of request b has its i-th row."""
    world, scheduled = World(), torch.tensor([1, 3, 0, 2])
    tokens, rows = drawn(world, 4, torch.Generator().manual_seed(6))
    for cut_ones in (scheduled, torch.tensor([1, 2, 0, 2])):  # the longest draft is cut, or is not
        runner, last, metadata = runner_of(world, tokens, rows, cut_ones, max_num_logprobs=1)
        runner.rejection_sampler.is_processed_logprobs_mode = True
        out = vllm_stub.sample(runner, world.z[last], metadata)
        ids, n = out.sampled_token_ids, int(cut_ones.max()) + 1
        assert ids.shape == (4, n) and len(out.logprobs_tensors.ranks) == 4 * n
        logprobs = out.logprobs_tensors.logprobs.view(4, n, V)
        first = (cut_ones + 1).cumsum(0) - cut_ones - 1
        for b in range(4):
            for i in range(int((ids[b] >= 0).sum())):
                assert torch.equal(logprobs[b, i], world.z[last[first[b] + i]])


@pytest.mark.slow
def test_async_scheduling_pads_where_the_grammar_ends():
    """Async scheduling verifies whole drafts: rows up to the cut are masked, later ones are not. The ids come from the
    device, not from the scheduler's list, which ends in -1."""
    world = World()
    tokens, rows = drawn(world, B, torch.Generator().manual_seed(3))
    for method in ("standard", "block"):
        full = torch.full((B,), K)
        runner, last, metadata = runner_of(world, tokens, rows, full, method)
        at_or_before = torch.arange(K + 1) <= leading(world.allowed[before(tokens), tokens])[:, None]
        logits = torch.where(at_or_before.reshape(-1, 1), world.masked(True)[last], world.z[last])
        out = vllm_stub.sample(runner, logits, metadata).sampled_token_ids.long()
        assert compared(out, world.p(True)).passed


def test_a_grammar_that_cuts_every_draft_at_its_first_token():
    """If every draft is cut at its first token, no draft is scheduled and the step's metadata is None.

    The example of the issue, one request at a time: without the correction (.5, .5) would become (.65, .35). 1,000
    steps detect a bias of .08 (5 standard deviations).
    """
    p, q, N = torch.tensor([0.5, 0.5, 0.0]).log(), torch.tensor([0.4, 0.1, 0.5]), 1000
    generator, seen = torch.Generator().manual_seed(5), Counter()
    sampler, drafter = vllm_stub.rejection_sampler(), vllm_stub.proposer()
    drafter.specdec = type("Drafting", (), {"logits": True})
    for step in range(N):
        token = torch.multinomial(q, 1, generator=generator)
        runner = vllm_stub.runner(sampler, drafter, torch.tensor([step]), vllm_stub.sampling(1), token[None],
                                  q.log()[None, None])  # fmt: skip
        ids = token if token != 2 else token[:0]
        metadata = vllm_stub.metadata([1], ids) if len(ids) else None
        runner.positions = torch.tensor([step, step + 1])[: len(ids) + 1]
        runner.query_start_loc.gpu = torch.tensor([0, len(ids) + 1], dtype=torch.int32)
        out = vllm_stub.sample(runner, p.expand(len(ids) + 1, 3), metadata)
        seen[int(out.sampled_token_ids[0, 0])] += 1
    assert set(seen) == {0, 1} and abs(seen[0] / N - 0.5) < 5 * (0.25 / N) ** 0.5


def layout(scheduled, tokens, rows, **changed):
    """Return drafts() of a runner whose requests have this many drafts scheduled."""
    world = World()
    runner, _, metadata = runner_of(world, tokens, rows, torch.tensor(scheduled))
    for name, x in changed.items():
        setattr(runner, name, x)
    metadata = metadata or vllm_stub.metadata(scheduled, tokens.reshape(-1)[:0])
    place, was_cut = cut.places(runner, scheduled, runner.specdec_sampled)
    return cut.drafts(runner, metadata, place, was_cut), was_cut.tolist()


def test_layout():
    """Three requests have 1, 3 and 0 drafts scheduled of 3. The first and the last were cut, and get one more."""
    tokens = torch.arange(9).view(3, 3)
    found, was_cut = layout([1, 3, 0], tokens, torch.zeros(3, K, 9))
    m = found.metadata
    assert was_cut == [True, False, True]
    assert m.draft_token_ids.tolist() == [0, 1, 3, 4, 5, 6] and found.draft_row.tolist() == [0, 1, 3, 4, 5, 6]
    assert m.num_draft_tokens == [2, 3, 1] and m.max_spec_len == 3
    assert m.cu_num_draft_tokens.tolist() == [2, 5, 6] and m.cu_num_sampled_tokens.tolist() == [3, 7, 9]
    assert found.target_row.tolist() == [0, 1, 1, 2, 3, 4, 5, 6, 6]  # the last row of a cut draft occurs twice
    assert m.bonus_logits_indices.tolist() == [2, 6, 8] and m.target_logits_indices.tolist() == [0, 1, 3, 4, 5, 7]
    kept = cut.kept(torch.arange(12).view(3, 4), vllm_stub.metadata([1, 3, 0], torch.zeros(4)))
    assert kept.tolist() == [[0, 1, -1, -1], [4, 5, 6, 7], [8, -1, -1, -1]]


def test_requests_that_were_not_drafted_for():
    """A request that is new to the batch, and one in the middle of its prompt, have no draft that was cut. The other
    request's rows stay."""
    tokens = torch.arange(9).view(3, 3)
    names = {"_draft_prob_req_ids": ["request 2", "request 0", "gone"]}
    found, was_cut = layout([2, 2, 2], tokens, torch.zeros(3, K, 9), specdec_sampled={"request 0"}, **names)
    assert was_cut == [True, False, False]
    assert found.metadata.draft_token_ids.tolist() == [3, 4, 5, -1, -1, 0, 1]
    assert found.draft_row.tolist() == [3, 4, 5, 0, 0, 0, 1]
    longer = layout([3, 3, 3], tokens, torch.zeros(3, 2, 9), _draft_prob_req_ids=["request 0", "request 2", "gone"],
                    _draft_token_ids=tokens[:, :2])[0]  # fmt: skip
    assert longer.metadata.draft_token_ids.tolist() == [0, 1, -1, -1, -1, -1, 3, 4, -1]  # placeholders after the drafts


@pytest.mark.parametrize("why", ["one-hot drafts", "greedy", "synthetic"])
def test_where_no_law_is_at_stake_nothing_is_added(why):
    """A one-hot draft with p = 0 leaves p unchanged, and an argmax or a synthetic rate needs no draft distribution."""
    world = World()
    tokens, rows = drawn(world, 4, torch.Generator().manual_seed(6))
    one_hot = why == "one-hot drafts"
    method, scheduled = "synthetic" if why == "synthetic" else "standard", torch.tensor([1, 0, 2, 3])
    greedy = {"all_greedy": True} if why == "greedy" else {}
    runner, last, metadata = runner_of(world, tokens, None if one_hot else rows, scheduled, method, **greedy)
    if one_hot:
        runner.drafter.specdec.logits = False
    told = []
    draft.runner_sample(lambda self, logits, given: told.append(given), runner, world.z[last], metadata)
    assert told == [metadata]


def test_sampled_requests_of_a_step():
    runner = vllm_stub.runner(None, None, torch.arange(3), vllm_stub.sampling(3))
    runner.discard_request_mask.np[1] = True
    assert cut.sampled(runner) == {"request 0", "request 2"}


def test_spec_token_ids_for_vllms_processors():
    given = vllm_stub.sampling(3, spec_token_ids=[[7], [], [8, 9]])
    longer = cut.with_cut_ids(given, np.array([True, True, False]))
    assert longer.spec_token_ids == [[7, 0], [0], [8, 9]] and given.spec_token_ids == [[7], [], [8, 9]]


def test_the_guide_names_each_cut():
    guide = (Path(__file__).parents[2] / "docs" / "guide.md").read_text()
    for name, (_, depends, _) in CUTS.items():
        (row,) = [line for line in guide.splitlines() if line.startswith(f"| {name} |")]
        assert ("no" if depends else "yes") == row.split("|")[2].strip(), row
