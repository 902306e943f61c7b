# SPDX-License-Identifier: Apache-2.0
"""Which way a call goes on a GPU, and that no way changes an answer: on the simulated device."""

import contextlib

import pytest
import torch
from support import backends

from bench.model import calls

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("cuda-on-cpu" not in backends.NAMES, reason="cuda-on-cpu was not asked for"),
]

G = 5
SMALL, LARGE = ["scan_positions", "verify_positions"], ["judge_rows", "finish_requests"]


@contextlib.contextmanager
def launches(module):
    """The names of the kernels that are launched inside"""
    module.reset()
    found = []
    yield found
    found += [kernel.split("<")[0] for kernel, _ in module.launches()]


def chain(B, V=1500):
    """Rows of which two drafts in three are accepted, for any number of requests the same"""
    g = torch.Generator().manual_seed(1)
    target = 2 * torch.randn(64, G + 1, V, generator=g)
    draft = (target[:, :G] + torch.randn(64, G, V, generator=g)).bfloat16()
    tokens = torch.multinomial(draft.float().softmax(-1).flatten(0, 1), 1, generator=g).view(64, G)
    uniforms = torch.rand(64, G + 1, generator=g, dtype=torch.float64)
    return {"target_logits": target[:B].bfloat16(), "draft_tokens": tokens[:B], "draft_logits": draft[:B],
            "uniforms": uniforms[:B]}  # fmt: skip


def by_batch_size():
    """Of a batch with as many positions as the way of few has room for, and of one with a request more: the kernels, and
    what each answers with and without rows of the draft."""
    import specdec_kernels as sk
    from tools.cuda_on_cpu.build import load

    module, found = load("fast"), []
    most = calls.FEW_POSITIONS // (G + 1)
    for B in (most, most + 1):
        args = chain(B)
        with launches(module) as kernels:
            rows = sk.verify_chain(**args)
        hot = sk.verify_chain(**{name: x for name, x in args.items() if name != "draft_logits"})
        found.append((kernels, [list(rows), list(hot)]))
    return found


def test_a_batch_goes_the_way_of_few_positions_up_to_their_number():
    (few, small), (many, large) = backends.there("cuda-on-cpu", by_batch_size)
    assert few == SMALL and many == LARGE
    for answers, others in zip(small, large):
        for x, y in zip(answers, others):
            assert torch.equal(x, y[: len(x)])
    assert small[0][1].unique().numel() > G // 2 + 1  # requests stop in many places
