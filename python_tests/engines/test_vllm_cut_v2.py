# SPDX-License-Identifier: Apache-2.0
"""Drafts that are cut before verification with vLLM's V2 model runner: the same cuts and distributions as with V1's.

The scheduler either sends fewer rows, or pads the ids with -1 from the cut on (async scheduling). No grammar masks the
rows after that cut.
"""

from types import SimpleNamespace

import pytest
import torch
from support.vllm_cuts import CUTS, B, K, V, World, compared, drawn

from specdec_kernels.integrations.vllm import verify_v2

PROMPT = 5  # tokens of every prompt


def step(world, name, padded, method="standard", one_hot=False, mended=True):
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
        draft_tokens=made, prefill_len=SimpleNamespace(gpu=torch.full((B + 9,), PROMPT, dtype=torch.int32))
    )
    sampler = SimpleNamespace(sampler=SimpleNamespace(req_states=requests))
    given = {
        "target_logits": logits,
        "draft_logits": None if one_hot else store,
        "draft_sampled": ids.to(torch.int32),
        "cu_num_logits": torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]).to(torch.int32),
        "pos": position,
        "idx_mapping": slots.to(torch.int32),
        "expanded_idx_mapping": slots.repeat_interleave(counts),
        "expanded_local_pos": column.expand(B, K + 1)[has_row],
        "temperature": torch.ones(B + 9),
        "seed": torch.randint(1 << 62, (B + 9,), generator=generator),
        "num_speculative_steps": K,
    }
    upstream = lambda self: verify_v2.rejection_sample(None, *given.values(), use_block_verification=method == "block")
    out, count = verify_v2.verify(upstream, sampler) if mended else upstream(sampler)
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
    "grammar, store, drafts, reaches", [(1, 1, 0, 3), (None, 1, 0, 0), (1, None, 0, 0), (1, 1, 2, 2)]
)
def test_a_step_whose_drafts_are_all_cut(grammar, store, drafts, reaches):
    """vLLM sends the step to its sampler, because of num_draft_tokens of its batch, which stays unchanged."""
    batch = SimpleNamespace(num_draft_tokens=drafts, req_ids=["a", "b", "c"])
    runner = SimpleNamespace(speculator=SimpleNamespace(draft_logits=store), rejection_sampler=object())
    told = verify_v2.runner_sample(
        lambda self, states, batch, grammar: batch.num_draft_tokens, runner, None, batch, grammar
    )
    assert told == reaches and batch.num_draft_tokens == drafts
