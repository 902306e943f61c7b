# SPDX-License-Identifier: Apache-2.0
"""Seeded requests with vLLM's plugin: the tokens that they repeat if drafts are cut or the request is preempted, and
those that no rule which accepts with probability min(1, p/q) can repeat."""

import pytest
import torch
from support import vllm_stub
from support.vllm_cuts import K, World, drawn, runner_of

from specdec_kernels import verify_chain

pytestmark = pytest.mark.usefixtures("vllm_modules")

B = 400


def step(scheduled, seed=3, method="standard", drafted=True, first=0):
    """Return tokens [B, n] of seeded requests with this many drafts scheduled, each at its own position. A batch may
    begin with request `first`."""
    world = World()
    tokens, rows = drawn(world, B, torch.Generator().manual_seed(seed))
    tokens, rows, scheduled = tokens[first:], rows[first:], scheduled[first:]
    seeds = {b: 1000 + b + first for b in range(B - first)}
    runner, last, metadata = runner_of(world, tokens, rows, scheduled, method, seeds=seeds)
    runner.positions += 7 * first
    if not drafted:  # resumed after a preemption, without its draft
        runner.specdec_sampled = frozenset()
    return vllm_stub.sample(runner, world.z[last], metadata).sampled_token_ids


@pytest.mark.parametrize("method", ["standard", "block"])
def test_a_step_that_is_done_again_with_its_drafts_repeats_its_tokens(method):
    """A preempted request, whose drafts are made again from the same text, repeats its tokens in any batch."""
    scheduled = torch.arange(B) % (K + 1)
    whole = step(scheduled, method=method)
    assert torch.equal(whole, step(scheduled, method=method)) and len(whole[:, 0].unique()) > 2
    assert torch.equal(whole[150:], step(scheduled, method=method, first=150))


@pytest.mark.parametrize("n", range(K))
def test_a_cut_draft_repeats_its_tokens_up_to_the_cut(n):
    """The token at the cut is tested with the same number as in the whole draft. Later tokens are in another step, with
    other numbers."""
    whole, short = step(torch.full((B,), K)), step(torch.full((B,), n))
    assert short.shape == (B, n + 1) and torch.equal(short, whole[:, : n + 1])
    assert (whole[:, n] >= 0).sum() > 20


def test_a_resumed_request_draws_another_token():
    """Resumed without its draft, the request draws from p the token that it would have tested: tokens differ at the
    same seed and position."""
    tested, plain = step(torch.full((B,), K))[:, :1], step(torch.zeros(B, dtype=torch.int64), drafted=False)
    different = int((tested != plain).sum())
    assert plain.shape == (B, 1) and B // 4 < different < B


def test_why_no_scheme_of_positions_repeats_a_resumed_request():
    """The proof in docs/vllm.md: one uniform below p(a) and p(b) accepts whichever of a and b was drafted. So the token
    is not a function of p and the random numbers alone, as a draw without a draft is."""
    uniforms = torch.tensor([[0.3, 0.7]], dtype=torch.float64)
    p = torch.tensor([0.5, 0.5]).log().expand(1, 2, 2)
    emitted = [int(verify_chain(p, torch.tensor([[drafted]]), uniforms=uniforms).tokens[0, 0]) for drafted in (0, 1)]
    assert emitted == [0, 1]
