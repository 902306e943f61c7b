# SPDX-License-Identifier: Apache-2.0
"""SPECDEC_VLLM_METHOD=race in vLLM's V1 runner: one text per seed, with any drafts or none, that follows the target."""

import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import vllm_stub
from support.vllm_engine import NGRAM, call, draft, engine
from support.vllm_step import PARAMETERS, V, law, never, tables

from specdec_kernels import testing
from specdec_kernels.integrations import vllm as plugin
from specdec_kernels.integrations.vllm import draft as drafting
from specdec_kernels.integrations.vllm import fallback, race, verify
from specdec_kernels.integrations.vllm.method import races

G = 3


@pytest.fixture(autouse=True)
def on(monkeypatch):
    monkeypatch.setenv("SPECDEC_VLLM_METHOD", "race")


class Engine:
    """A runner whose requests' next row depends on the last token only. They begin at positions 3 to 9."""

    def __init__(self, target, drafter, B, seeds, speculates=True, name="request"):
        self.target, self.draft_table, self.B = target, drafter, B
        self.sampling = vllm_stub.sampling(B, seeds=seeds, **PARAMETERS)
        self.position = torch.arange(B) % 7 + 3  # of the last token
        self.last = torch.zeros(B, dtype=torch.int64)
        self.texts = [[] for _ in range(B)]
        self.accepted = self.drafted = 0
        sampler = vllm_stub.rejection_sampler()
        race.made(sampler)
        self.proposer = vllm_stub.proposer()
        self.runner = vllm_stub.runner(sampler, self.proposer, self.position, self.sampling)
        self.runner.input_batch.generators = self.sampling.generators
        self.runner.input_batch.req_ids = [f"{name} {b}" for b in range(B)]
        self.runner.model_config = SimpleNamespace(seed=0)
        if not speculates:
            del self.runner.rejection_sampler, self.runner.drafter
            self.runner.sampler = SimpleNamespace(logprobs_mode="raw_logprobs")

    def propose(self):
        """Draw G drafts after the last tokens; return them and their rows."""

        def first_pass(proposer):
            proposer.positions = self.position + 100  # positions of a drafter may be shifted, as EAGLE's are
            return None, torch.arange(self.B), None

        def propose(proposer):
            drafting.set_inputs_first_pass(first_pass, proposer)
            tokens, rows, last = [], [], self.last
            for _ in range(G):
                last, logits = drafting.sample_from_logits(never, proposer, self.draft_table[last], self.sampling)
                tokens.append(last)
                rows.append(logits)
            return torch.stack(tokens, 1), torch.stack(rows, 1)

        return drafting.propose(propose, self.proposer)

    def step(self, counts):
        """Verify the first counts [B] drafts of each request; all 0: a step without drafts."""
        tokens = torch.zeros(self.B, G, dtype=torch.int64)
        if counts.any():
            tokens, self.runner._draft_probs = self.propose()
            self.runner._draft_token_ids = tokens
            self.runner._draft_prob_req_ids = self.runner.input_batch.req_ids
        inside = torch.arange(G + 1) <= counts[:, None]
        behind = torch.cat([self.last[:, None], tokens], 1)[inside]
        self.runner.positions = (self.position[:, None] + torch.arange(G + 1))[inside]
        ids = tokens[torch.arange(G) < counts[:, None]]
        metadata = vllm_stub.metadata(counts.tolist(), ids)
        self.runner.query_start_loc.gpu = torch.nn.functional.pad(metadata.cu_num_sampled_tokens, (1, 0))
        out = vllm_stub.sample(self.runner, self.target[behind], metadata if len(ids) else None).sampled_token_ids
        n = (out >= 0).sum(1)
        for text, line, k in zip(self.texts, out.tolist(), n.tolist(), strict=True):
            text += line[:k]
        self.last = out.gather(1, n[:, None] - 1)[:, 0].long()
        self.position += n
        self.accepted, self.drafted = self.accepted + int((n - 1).sum()), self.drafted + int(counts.sum())


def decoded(B, steps, speculates=True, seeds=None, drafter=None, counts=lambda step, B: torch.full((B,), G), **more):
    target, other = tables(4)
    run = Engine(target, other if drafter is None else drafter, B, seeds, speculates, **more)
    run.step(torch.zeros(B, dtype=torch.int64))  # the step that reads the prompt
    for i in range(steps):
        run.step(counts(i, B) if speculates else torch.zeros(B, dtype=torch.int64))
    return run


@pytest.mark.usefixtures("vllm_modules")
@pytest.mark.parametrize("seeds", [None, {b: 50 + b for b in range(0, 60, 2)}])
def test_one_text_with_any_drafts_or_none(seeds):
    """The text is the same if the number of drafts varies, if a step has none, and if another model drafts. An engine
    that does not speculate writes the same text."""
    plain = decoded(60, 16, speculates=False, seeds=seeds).texts
    ragged = lambda i, B: (torch.arange(B) + i) % (G + 1) * int(i % 3 != 2)
    for run in (decoded(60, 6, seeds=seeds), decoded(60, 8, seeds=seeds, counts=ragged),
                decoded(60, 6, seeds=seeds, drafter=torch.zeros(V, V))):  # fmt: skip
        shortest = [min(map(len, pair)) for pair in zip(run.texts, plain, strict=True)]
        assert min(shortest) > 5 and max(shortest) > 12
        assert [x[:n] for x, n in zip(run.texts, shortest, strict=True)] == [
            x[:n] for x, n in zip(plain, shortest, strict=True)
        ]
        assert 0.1 < run.accepted / run.drafted < 0.9


@pytest.mark.usefixtures("vllm_modules")
def test_drafts_share_the_targets_noise():
    """Drafts of the target itself are always accepted. With noise of other positions they would be accepted by
    chance."""
    target, _ = tables(4)
    run = decoded(200, 3, drafter=target)
    assert run.accepted == run.drafted > 1000


@pytest.mark.slow
@pytest.mark.usefixtures("vllm_modules")
def test_the_text_follows_the_target():
    """Three tokens of requests without seeds follow the target's joint distribution. Their seeds are made from the
    requests' ids."""
    target, _ = tables(4)
    p = [law(row, **PARAMETERS) for row in target]
    wanted = testing.enumerate_law(lambda t: p[t[-1] if t else 0], 3)
    run = decoded(20_000, 3)
    first = torch.tensor([text[:3] for text in run.texts])
    result = testing.check_tokens(first, wanted)
    assert result.passed and result.detects < 0.04, result


@pytest.mark.usefixtures("vllm_modules")
def test_requests_of_other_names_draw_other_texts():
    a, b, c = (decoded(40, 4, name=name).texts for name in ("request", "request", "other"))
    assert a == b and sum(x[:5] != y[:5] for x, y in zip(a, c, strict=True)) > 30


@pytest.mark.usefixtures("vllm_modules")
def test_a_step_left_to_vllm_leaves_no_place_of_an_earlier_batch():
    """After a step without drafts that falls back, the next drafts may be those of another batch."""
    run = decoded(3, 1)
    assert run.proposer.specdec_race is not None
    run.sampling = run.runner.input_batch.sampling_metadata = vllm_stub.sampling(2, **PARAMETERS)
    run.sampling.logprob_token_ids = {0: [1]}
    run.runner.input_batch.req_ids = ["another request", "and another"]
    assert drafting.runner_sample(lambda *given: "vLLM's", run.runner, torch.zeros(2, V), None) == "vLLM's"
    run.B, run.last, run.position = 2, run.last[:2], run.position[:2]
    assert run.propose()[0].shape == (2, G)


@pytest.mark.usefixtures("vllm_modules")
def test_drafts_of_a_step_that_is_left_to_vllm_are_dropped():
    """Such drafts share their noise with the draws that follow, so that their acceptance test would be biased."""
    sampler = vllm_stub.rejection_sampler()
    race.made(sampler)
    sampler.is_processed_logprobs_mode = True
    metadata, sampling = vllm_stub.metadata([2], torch.tensor([3, 3])), vllm_stub.sampling(1, max_num_logprobs=1)
    told = lambda self, metadata, probs, logits, sampling_metadata: metadata.draft_token_ids.tolist()
    assert verify.forward(told, sampler, metadata, None, torch.zeros(3, V), sampling) == [-1, -1]


@pytest.mark.parametrize("method", ["block", "synthetic", "fly"])
def test_another_method_is_refused(method):
    with pytest.raises(ValueError, match=f"rejection_sample_method must be standard, got {method}"):
        race.made(vllm_stub.rejection_sampler(method))


def test_an_unknown_method_is_off_with_a_warning(monkeypatch, caplog):
    monkeypatch.setenv("SPECDEC_VLLM", "1")
    monkeypatch.setenv("SPECDEC_VLLM_METHOD", "rase")
    plugin.register()
    assert "SPECDEC_VLLM_METHOD='rase' is not race: vLLM is not patched" in caplog.text
    monkeypatch.setenv("SPECDEC_VLLM_METHOD", " Race ")
    assert races()


def test_an_engine_without_speculation_is_not_said_to_do_nothing(caplog):
    fallback.no_speculation.cache_clear()
    caplog.set_level("INFO", "vllm.specdec_kernels")
    fallback.no_speculation()
    fallback.no_speculation.cache_clear()
    assert not caplog.records


@pytest.mark.thorough
@pytest.mark.skipif("SPECDEC_TEST_VLLM" not in os.environ, reason="SPECDEC_TEST_VLLM names no environment")
def test_in_vllm_with_and_without_speculation():
    """In float32 prompt lookup, drafts of the target itself and no drafts give the same texts, except where the
    rounding of a row in another batch decides (one in eight may differ). The target's own drafts share its noise, so
    nearly all are accepted."""
    calls = [
        call(temperature=1.0, max_tokens=32),
        call(temperature=0.8, top_p=0.95, presence_penalty=1.0, max_tokens=32),
    ]
    (plain, ngram, same), log = engine((None, calls), (NGRAM, calls), (draft("target"), calls))
    texts = [[text for each in answer["tokens"] for text in each] for answer in (plain, ngram, same)]
    for other in texts[1:]:
        equal = np.sum([x == y for x, y in zip(other, texts[0], strict=True)])
        print(f"{equal} of {len(other)} texts are equal")
        assert equal >= len(other) - 1
    assert same["accepted"] > 0.8 * same["drafted"] > 100
    assert "nothing to verify" not in log and len({tuple(x) for x in texts[0]}) == len(texts[0])
