# SPDX-License-Identifier: Apache-2.0
"""Logprobs of a step with vLLM's plugin: those of each emitted token and of its row's best ids, and the token's rank,
equal a softmax and a sort of the rows."""

import pytest
import torch
from support import vllm_stub
from support.vllm_step import never

from specdec_kernels.integrations.vllm import verify

pytestmark = pytest.mark.usefixtures("vllm_modules")

V = 37
ROUNDED = 4 * 2.0**-22  # four float32 roundings of numbers below 8


@pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits"])
@pytest.mark.parametrize("count", [0, 3, V])
@pytest.mark.parametrize("num_draft", [[2, 0, 3], [1, 1, 1], [0, 0, 2]])
def test_of_every_emitted_token(num_draft, count, mode):
    B, G, D = len(num_draft), max(num_draft), sum(num_draft)
    generator = torch.Generator().manual_seed(D)
    rows = torch.randn(D + B, V, generator=generator).to(torch.bfloat16)
    rows[1] = rows[1].round()  # ties: the lowest id comes first, and its rank counts all equally likely ids
    drafts = torch.randint(V, (D,), generator=generator)
    sampler = vllm_stub.rejection_sampler()
    sampler.is_logits_logprobs_mode = mode == "raw_logits"
    sampling = vllm_stub.sampling(B, temperature=0.3, top_k=5, max_num_logprobs=count)
    out = verify.forward(never, sampler, vllm_stub.metadata(num_draft, drafts), None, rows, sampling)
    ids, values, ranks = out.logprobs_tensors[:3]
    assert ids.shape == values.shape == (B * (G + 1), count + 1) and ranks.shape == (B * (G + 1),)
    assert ids.dtype == torch.int32 and values.dtype == torch.float32
    z = rows.double()
    law = z if mode == "raw_logits" else z.log_softmax(1)
    starts = torch.tensor([0, *num_draft[:-1]]).cumsum(0) + torch.arange(B)
    for b, emitted in enumerate(out.sampled_token_ids.tolist()):
        for i, token in enumerate(x for x in emitted if x >= 0):
            at, row = b * (G + 1) + i, int(starts[b]) + i
            best = sorted(range(V), key=lambda v: (-z[row, v], v))[:count]
            assert ids[at].tolist() == [token, *best]
            torch.testing.assert_close(values[at].double(), law[row, ids[at].long()], rtol=0, atol=ROUNDED)
            assert ranks[at] == (z[row] >= z[row, token]).sum()


def test_none_where_none_are_asked_for():
    metadata = vllm_stub.metadata([1], torch.tensor([3]))
    out = verify.forward(never, vllm_stub.rejection_sampler(), metadata, None, torch.zeros(2, V), vllm_stub.sampling(1))
    assert out.logprobs_tensors is None
