# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's chain_speculative_sampling on our ops: results are those of its documentation, with the random numbers
that our ops draw."""

import peer_walks
import pytest
import torch
from support.backends import there

from specdec_kernels import uniforms
from specdec_kernels.integrations.flashinfer import chain_speculative_sampling
from specdec_kernels.registry import DOMAIN_FINAL

pytestmark = pytest.mark.one_backend  # a wrapper of ops, which other tests run on each backend

B, G, V = 64, 4, 7


@pytest.fixture(scope="module")
def inputs():
    """Return rows near enough that every accepted length occurs."""
    generator = torch.Generator().manual_seed(1)
    p = torch.softmax(torch.randn(B, G + 1, V, generator=generator) * 2, -1)
    q = (p[:, :-1] + torch.softmax(torch.randn(B, G, V, generator=generator), -1)) / 2
    tokens = torch.multinomial(q.flatten(0, 1), 1, generator=generator).view(B, G)
    return q, tokens, p


def numbers(seed, offset):
    """Return the random numbers of the acceptance tests [B, G] and of the final draw [B], as the docstring of
    chain_speculative_sampling defines them."""
    seeds = torch.as_tensor(seed) ^ (torch.arange(B) << 40)
    offsets = torch.as_tensor(offset).expand(B).contiguous()
    return uniforms(seeds, offsets, G), uniforms(seeds, offsets, 1, DOMAIN_FINAL)[:, 0]


def wanted(q, tokens, p, coins, final):
    rows = zip(p.double().numpy(), q.double().numpy(), tokens.tolist(), coins.tolist(), final.tolist())
    walks = [peer_walks.chain(*row) for row in rows]
    out = torch.full((B, G + 1), -1, dtype=torch.int32)
    for b, (n, last) in enumerate(walks):
        out[b, : n + 1] = torch.tensor([*tokens[b, :n].tolist(), last])
    single = coins * q.gather(2, tokens.unsqueeze(2)).squeeze(2) < p[:, :G].gather(2, tokens.unsqueeze(2)).squeeze(2)
    return out, single.sum(1).int(), torch.tensor([n for n, _ in walks], dtype=torch.int32)


def same(got, want):
    for x, y in zip(got, want):
        assert x.dtype == torch.int32 and torch.equal(x, y)


SEEDS = [
    (5, 0),
    (-1, 1 << 40),
    ((1 << 64) - 1, 3),
    (torch.tensor([9]), torch.tensor([2])),
    (torch.arange(B), torch.arange(B) + 8),
]


@pytest.mark.parametrize("seed, offset", SEEDS)
@pytest.mark.parametrize("ids", [torch.int32, torch.int64])
def test_what_is_emitted(op_backend, inputs, seed, offset, ids):
    q, tokens, p = inputs
    got = there(op_backend, chain_speculative_sampling, q, tokens.to(ids), p, seed=seed, offset=offset)
    signed = seed if isinstance(seed, torch.Tensor) or seed < 1 << 63 else seed - (1 << 64)
    want = wanted(q, tokens, p, *numbers(signed, offset))
    assert set(want[2].tolist()) == set(range(G + 1)) and (want[1] > want[2]).any()
    same(got, want)


def test_seeds_of_every_width(inputs):
    """An int32 seed or offset counts by its value, in a tensor of one entry and of many."""
    q, tokens, p = inputs
    for given in (torch.tensor([7]), torch.arange(B) - 3):
        widths = [given.to(dtype) for dtype in (torch.int32, torch.int64)]
        same(*[chain_speculative_sampling(q, tokens, p, seed=x, offset=x) for x in widths])


def test_unsigned_seeds(inputs):
    q, tokens, p = inputs
    seeds = torch.arange(B) - 3
    got = [
        chain_speculative_sampling(q, tokens, p, seed=seeds.view(dtype), offset=seeds.abs().view(dtype))
        for dtype in (torch.int64, torch.uint64)
    ]
    same(*got)


def test_counts_are_added_in_place(inputs):
    q, tokens, p = inputs
    _, singles, emitted = chain_speculative_sampling(q, tokens, p, seed=1, offset=0)
    for dtype in (torch.int32, torch.int64):
        counts = torch.full((B,), 100, dtype=dtype), torch.full((B,), 1000, dtype=dtype)
        _, *returned = chain_speculative_sampling(q, tokens, p, *counts, seed=1, offset=0)
        assert all(x is y for x, y in zip(counts, returned))
        assert torch.equal(counts[0], singles + 100) and torch.equal(counts[1], emitted + 1000)


def test_generators(inputs):
    q, tokens, p = inputs
    draw = lambda seed: chain_speculative_sampling(q, tokens, p, generator=torch.Generator().manual_seed(seed))[0]
    assert torch.equal(draw(1), draw(1)) and not torch.equal(draw(1), draw(2))
    generator = torch.Generator().manual_seed(1)
    assert not torch.equal(*(chain_speculative_sampling(q, tokens, p, generator=generator)[0] for _ in range(2)))
    torch.manual_seed(4)
    first = chain_speculative_sampling(q, tokens, p)[0]
    assert not torch.equal(first, chain_speculative_sampling(q, tokens, p)[0])
    torch.manual_seed(4)
    assert torch.equal(first, chain_speculative_sampling(q, tokens, p, deterministic=False)[0])


def test_rows_of_one_seed_draw_different_numbers():
    """Equal requests with one seed for the batch: chi-square of the first token, three degrees of freedom, p = 1e-6."""
    n, p = 4000, torch.tensor([0.1, 0.2, 0.3, 0.4])
    q = torch.tensor([0.4, 0.3, 0.2, 0.1])
    drafts = torch.multinomial(q, n, True, generator=torch.Generator().manual_seed(2)).view(n, 1)
    tokens, singles, emitted = chain_speculative_sampling(
        q.expand(n, 1, 4), drafts, p.expand(n, 2, 4), seed=11, offset=0
    )
    assert ((tokens[:, 0].bincount(minlength=4) - n * p) ** 2 / (n * p)).sum() < 30.66
    assert torch.equal(singles, emitted)  # with one draft they are the same
    kept = torch.minimum(p, q).sum()
    assert abs(emitted.double().mean() - kept) < 5 * (kept * (1 - kept) / n) ** 0.5


def test_edges():
    """Edge cases: drafts with q = 0 or an id out of range are rejected, and with equal rows every draft is accepted."""
    p = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]).expand(50, 2, 3)
    q = torch.tensor([0.0, 1.0, 0.0]).expand(50, 1, 3)
    tokens, singles, emitted = chain_speculative_sampling(q, torch.zeros(50, 1, dtype=torch.int32), p, seed=1, offset=0)
    assert not singles.any() and not emitted.any() and (tokens[:, 0] == 0).all() and (tokens[:, 1] == -1).all()
    sure = torch.tensor([1.0, 0.0, 0.0]).expand(50, 1, 3)  # all mass is at id 0, for which -1 must not be taken
    tokens, singles, emitted = chain_speculative_sampling(sure, torch.full((50, 1), -1), p, seed=1, offset=0)
    assert not singles.any() and not emitted.any() and set(tokens[:, 0].tolist()) == {0, 1}
    drafts = torch.ones(50, 1, dtype=torch.int64)
    tokens, singles, emitted = chain_speculative_sampling(p[:, :1], drafts, p, seed=1, offset=0)
    assert singles.all() and emitted.all() and (tokens[:, 0] == 1).all()


def test_no_requests_and_no_drafts():
    empty = chain_speculative_sampling(torch.empty(0, 2, 3), torch.empty(0, 2, dtype=torch.int32), torch.empty(0, 3, 3))
    assert [x.shape for x in empty] == [(0, 3), (0,), (0,)]
    p = torch.tensor([0.0, 1.0, 0.0]).expand(2, 1, 3)
    tokens, singles, _ = chain_speculative_sampling(p[:, :0], torch.empty(2, 0, dtype=torch.int32), p)
    assert tokens.tolist() == [[1], [1]] and singles.tolist() == [0, 0]


@pytest.mark.parametrize(
    "given, says",
    [
        ({"seed": 1, "offset": torch.tensor([0])}, "seed and offset must both be numbers or both tensors"),
        ({"seed": torch.arange(3), "offset": torch.arange(3)}, r"seed must be a number or have shape \[64\] or \[1\]"),
    ],
)
def test_seeds_that_do_not_fit(inputs, given, says):
    with pytest.raises(ValueError, match="chain_speculative_sampling: " + says):
        chain_speculative_sampling(*inputs, **given)
