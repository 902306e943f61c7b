# SPDX-License-Identifier: Apache-2.0
"""Drafts that are cut before verification with vLLM's V2 model runner: the same cuts and distributions as with V1's.

The scheduler either sends fewer rows, or pads the ids with -1 from the cut on (async scheduling). No grammar masks the
rows after that cut.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.vllm_cuts import CUTS, B, K, V, World, compared, drawn
from support.vllm_v2_sampler import idle_sampler, rejection_sampler

from specdec_kernels.integrations.vllm import verify_v2

PROMPT = 5  # tokens of every prompt


def step(world, name, padded, method="standard", one_hot=False, mended=True, raw=True):
    """Return the tokens of a step [B, K+1]. Drafts and rows are indexed by slot; slots without a request hold other
    values."""
    grammar, _, keep = CUTS[name]
    generator = torch.Generator().manual_seed(7)
    tokens, rows = drawn(world, B, generator)
    if one_hot:
        tokens = rows.argmax(2)
    scheduled = keep(world, tokens)
    slots = torch.randperm(B + 9, generator=generator)[:B]
    made, store = torch.full((B + 9, K), -7), torch.full((B + 9, K, V), torch.nan)
    made[slots], store[slots] = tokens, rows
    every = torch.cat([torch.zeros(B, 1, dtype=torch.int64), tokens], 1)
    column = torch.arange(K + 1)
    has_row = (column <= scheduled[:, None]) | padded
    masked = (column <= scheduled[:, None])[has_row]
    logits = torch.where(masked[:, None], world.masked(grammar)[every[has_row]], world.z[every[has_row]])
    ids = torch.where(column <= scheduled[:, None], every, -1)[has_row]
    counts = has_row.sum(1)
    position = (PROMPT + torch.arange(B)[:, None] * 11 + column)[has_row]
    requests = SimpleNamespace(
        draft_tokens=made,
        prefill_len=SimpleNamespace(gpu=torch.full((B + 9,), PROMPT, dtype=torch.int32)),
        req_id_to_index={},
    )
    sampler = idle_sampler(B + 9, V, torch.ones(B + 9), torch.randint(1 << 62, (B + 9,), generator=generator), requests)
    given = {
        "logits": logits,
        "draft_logits": None if one_hot else store,
        "draft_sampled": ids.to(torch.int32),
        "pos": position,
        "cu_num_logits": torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]).to(torch.int32),
        "idx_mapping": slots.to(torch.int32),
        "idx_mapping_np": slots.numpy(),
        "expanded_idx_mapping": slots.repeat_interleave(counts),
        "expanded_local_pos": column.expand(B, K + 1)[has_row],
        "seq_lens_upper_bound_np": position.numpy()[:B] + K,
        "verify_draft_sampled": ids.to(torch.int32),
    }

    def upstream(self, logits, draft_logits, _, pos, cu, slot, __, *more):  # rows need no processing here
        states, drafts = self.sampler.sampling_states, more[-1]
        rows = (logits, draft_logits, drafts, cu, pos, slot, *more[:2])
        by = (states.temperature.gpu, states.seeds.gpu, K)
        return logits, *verify_v2.rejection_sample(None, *rows, *by, use_block_verification=method == "block")

    runner = rejection_sampler(sampler, K, method)
    if raw and mended:
        _, out, count = verify_v2.verify(None, runner, **given)
    else:
        sampler.logprobs_mode = "processed_logprobs"
        sampler.sampling_states.num_logprobs = np.zeros(B + 9)
        run = verify_v2.verify if mended else lambda upstream, *args, **named: upstream(*args, *named.values())
        _, out, count = run(upstream, runner, **given)
    assert count.dtype == torch.int32 and torch.equal(count, (out >= 0).sum(1).int())
    assert not padded or (out[:, 1:] < 0).logical_or(column[1:] <= scheduled[:, None]).all()
    return out


@pytest.mark.slow
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", CUTS)
def test_law_of_the_text(name, padded):
    world = World()
    for method in ("standard", "block"):
        assert compared(step(world, name, padded, method), world.p(CUTS[name][0])).passed, method
    assert compared(step(world, name, padded, raw=False), world.p(CUTS[name][0])).passed  # rows that vLLM prepared


@pytest.mark.slow
@pytest.mark.parametrize("padded", [False, True])
def test_without_the_id_that_was_cut_the_law_is_another(padded):
    world = World()
    assert not compared(step(world, "grammar", padded, mended=False), world.p(True)).passed
    assert compared(step(world, "grammar", padded, one_hot=True), world.p(True)).passed


def test_which_requests_have_a_draft():
    """Requests that have sampled past their prompt have the ids that the drafter made, and -1 where it made fewer."""
    requests = SimpleNamespace(
        draft_tokens=torch.tensor([[7, 8], [5, -1], [3, 4], [1, 2]]),
        prefill_len=SimpleNamespace(gpu=torch.tensor([10, 10, 10, 10])),
    )
    drafts = torch.tensor([[-1, -1], [5, -1], [-1, -1], [1, 2]])
    found, kept = verify_v2.with_cut(drafts, requests, torch.tensor([0, 1, 2, 3]), torch.tensor([10, 12, 9, 30]))
    assert found.tolist() == [[7, -1], [5, -1], [-1, -1], [1, 2]] and kept.tolist() == [[0], [1], [0], [2]]


@pytest.mark.parametrize(
    "grammar, store, drafts, reaches", [(["a"], 1, 0, 3), (None, 1, 0, 0), (["a"], None, 0, 0), (["a"], 1, 2, 2)]
)
def test_a_step_whose_drafts_are_all_cut(grammar, store, drafts, reaches):
    """vLLM would send a step without scheduled drafts to its sampler. If a grammar cut them, the plugin passes on a
    copy of the batch with one draft per request, and the batch itself stays unchanged."""
    batch = SimpleNamespace(num_draft_tokens=drafts, req_ids=["a", "b", "c"])
    runner = SimpleNamespace(speculator=SimpleNamespace(draft_logits=store), rejection_sampler=object())
    grammar = grammar and SimpleNamespace(structured_output_request_ids=grammar)
    told = verify_v2.runner_sample(
        lambda self, states, batch, grammar: batch.num_draft_tokens, runner, None, batch, grammar
    )
    assert told == reaches and batch.num_draft_tokens == drafts
