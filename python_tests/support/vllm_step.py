# SPDX-License-Identifier: Apache-2.0
"""A step under vLLM's plugin: drafts, rows, emitted tokens, and their distribution."""

import numpy as np
import torch
from support import vllm_stub

from specdec_kernels import testing
from specdec_kernels.integrations.vllm import draft
from specdec_kernels.reference import chain_law

V, G = 5, 2
PARAMETERS = {"temperature": 0.9, "top_k": 4, "top_p": 0.9}


def never(*args, **kwargs):
    raise AssertionError("vLLM's own function was called")


def law(z, temperature, top_k, top_p):
    """Return a row's distribution by definition: the top_k largest, of these the fewest whose mass reaches top_p."""
    p = np.exp(np.asarray(z, dtype=np.float64) / temperature)
    order = np.argsort(-p)
    p[order[top_k:]] = 0
    p /= p.sum()
    p[order[1:][np.cumsum(p[order])[:-1] >= top_p]] = 0
    return p / p.sum()


def step(target, drafter, B, start, seeds=None, method="standard", parameters=PARAMETERS):
    """Run one step of B requests whose next row depends on the last token only. Return tokens [B, G+1].

    target, drafter [V, V]: the row after each token; start [B]: each request's position.
    """
    sampling = vllm_stub.sampling(B, seeds=seeds, **parameters)
    proposer, sampler = vllm_stub.proposer(method), vllm_stub.rejection_sampler(method)

    def first_pass(self):
        self.positions = start
        return None, torch.arange(B), None

    def propose(self):
        draft.set_inputs_first_pass(first_pass, self)
        tokens, rows, last = [], [], torch.zeros(B, dtype=torch.int64)
        for _ in range(G):
            last, logits = draft.sample_from_logits(never, self, drafter[last], sampling)
            tokens.append(last)
            rows.append(logits)
        return torch.stack(tokens, 1), torch.stack(rows, 1)

    tokens, rows = draft.propose(propose, proposer)
    behind = torch.cat([torch.zeros(B, 1, dtype=torch.int64), tokens], 1).reshape(-1)
    positions = (start[:, None] + torch.arange(G + 1)).reshape(-1)
    runner = vllm_stub.runner(sampler, proposer, positions, sampling, tokens, rows)
    metadata = vllm_stub.metadata([G] * B, tokens.reshape(-1))
    return vllm_stub.sample(runner, target[behind], metadata).sampled_token_ids


def tables(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(V, V, generator=generator) * 0.7, torch.randn(V, V, generator=generator) * 0.7


def chi_square_of_a_step(method="standard", B=40_000, parameters=PARAMETERS, law=law):
    """Compare the tokens of B steps with the distribution of a step by enumeration."""
    target, drafter = tables(1)
    p = [law(row, **parameters) for row in target]
    q = [law(row, **parameters) for row in drafter]
    behind = lambda prefix: prefix[-1] if prefix else 0
    ours = {"standard": "token", "block": "block"}[method]
    wanted = chain_law(lambda t: p[behind(t)], lambda t: q[behind(t)], G, method=ours)
    seeds = {b: 7 * b for b in range(0, B, 2)}  # in the others each call has its own seed
    tokens = step(target, drafter, B, torch.arange(B), seeds, method, parameters)
    return testing.check_tokens(tokens, wanted)
