# SPDX-License-Identifier: Apache-2.0
"""Drafts that are cut before verification: models, the reasons to cut, and the distribution of the text."""

import torch
from support import vllm_stub

from specdec_kernels import testing

V, K = 5, 3
B = 25_000  # steps per test of a distribution
LEAVES = 1  # an id that the model has as its stop id
KEPT_SET = torch.tensor([True, False, True, True, False])


def target_rows(generator):
    """Return the target's row after each token, and the ids that a grammar allows there: 2 to 4 of 5."""
    allowed = torch.rand(V, V, generator=generator).argsort(1) < torch.randint(2, V, (V, 1), generator=generator)
    return torch.randn(V, V, generator=generator), allowed


class World:
    """Models whose next row depends on the last token only. The text before is token 0."""

    def __init__(self, seed=1):
        generator = torch.Generator().manual_seed(seed)
        self.z, self.allowed = target_rows(generator)
        self.draft = torch.randn(V, V, generator=generator) * 1.5
        self.q = self.draft.double().softmax(1)

    def masked(self, grammar):
        return self.z.masked_fill(~self.allowed, -torch.inf) if grammar else self.z

    def p(self, grammar):
        return self.masked(grammar).double().softmax(1)


def before(tokens):
    """Return the token before each of `tokens` [B, n]."""
    return torch.cat([torch.zeros(len(tokens), 1, dtype=torch.int64), tokens[:, :-1]], 1)


def leading(ok):
    """Return how many entries of each row are true before the first false one."""
    return ok.to(torch.int64).cumprod(1).sum(1)


# reason: (whether a grammar masks the target's rows, whether the cut depends on the id that is cut away, a function of
# (World, tokens [B, K]) that returns the number of drafts kept [B])
CUTS = {
    "grammar": (True, True, lambda w, x: leading(w.allowed[before(x), x])),
    "grammar and budget": (
        True,
        True,
        lambda w, x: leading(w.allowed[before(x), x]).minimum(torch.arange(len(x)) % (K + 1)),
    ),
    "stop id cut off": (False, True, lambda w, x: leading(x != LEAVES)),
    "token i is outside the target's kept set": (False, True, lambda w, x: leading(KEPT_SET[x])),
    "token i was drawn with low confidence, and is cut off": (
        False,
        True,
        lambda w, x: leading(w.q[before(x), x] > 0.2),
    ),
    "token budget": (False, False, lambda w, x: torch.arange(len(x)) % (K + 1)),
    "length limit": (False, False, lambda w, x: torch.full((len(x),), 1)),
    "the engine scheduled no verification": (False, False, lambda w, x: torch.zeros(len(x), dtype=torch.int64)),
    "after a stop id": (False, False, lambda w, x: (leading(x != LEAVES) + 1).clamp(max=K)),
    "after an unsure draft": (False, False, lambda w, x: (leading(w.q[before(x), x] > 0.2) + 1).clamp(max=K)),
    "what other requests drafted": (
        True,
        False,
        lambda w, x: leading(w.allowed[before(x), x]).roll(1).clamp(max=K),  # of the previous request in the batch
    ),
}


def drawn(world, B, generator):
    """Return drafts [B, K] and their rows of logits [B, K, V]."""
    tokens, last = [], torch.zeros(B, dtype=torch.int64)
    for _ in range(K):
        last = torch.multinomial(world.q[last], 1, generator=generator)[:, 0]
        tokens.append(last)
    tokens = torch.stack(tokens, 1)
    return tokens, world.draft[before(tokens)]


def runner_of(world, tokens, rows, scheduled, method="standard", **sampling):
    """Return the runner, the token before each of its rows of logits, and the step's metadata.

    scheduled [B]: the number of drafts of each request.
    """
    B = len(tokens)
    sampler, drafter = vllm_stub.rejection_sampler(method), vllm_stub.proposer(method)
    drafter.specdec = type("Drafting", (), {"logits": True})
    inside = torch.arange(K + 1) <= scheduled[:, None]
    last = torch.cat([torch.zeros(B, 1, dtype=torch.int64), tokens], 1)[inside]
    positions = (torch.arange(B)[:, None] * 7 + torch.arange(K + 1))[inside]
    runner = vllm_stub.runner(sampler, drafter, positions, vllm_stub.sampling(B, **sampling), tokens, rows)
    ids = tokens[torch.arange(K) < scheduled[:, None]]
    metadata = vllm_stub.metadata(scheduled.tolist(), ids) if len(ids) else None
    return runner, last, metadata


def compared(out, p, length=K + 1):
    """Compare texts, completed to `length` tokens by draws from p [V, V], with their joint distribution."""
    model = lambda t: p[t[-1] if t else 0]
    return testing.check_tokens(
        testing.complete_tokens(out, model, length, seed=4), testing.enumerate_law(model, length)
    )
