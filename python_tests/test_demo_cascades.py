# SPDX-License-Identifier: Apache-2.0
"""bench.demo.cascades: its numbers on small models against the theory and a plain pass."""

import pytest
import tiny
import torch

from bench.demo import cascades
from specdec_kernels import decode, theory

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("rule, alpha", [("chow", 0.6), ("diff", 0.1), ("opt", 0.2), ("token_v3", 0.7)])
def test_deferral_is_the_theorys(rule, alpha):
    generator = torch.Generator().manual_seed(0)
    z, y = (1.7 * torch.randn(300, 12, generator=generator) for _ in range(2))
    want = theory.deferral_rate(z.double().softmax(-1), y.double().softmax(-1), rule, alpha)
    assert torch.allclose(cascades.deferral(rule, alpha, z, y).double(), want, atol=1e-5) and 0.1 < want.mean() < 0.9


@pytest.mark.parametrize("setting", [("speculative", "exact", None), ("speculative", "chow", 0.7), ("plain", "chow", 0.7)])
def test_counts_of_a_setting(setting):
    """Against the whole text read at once; a plain cascade's calls are the deferrals of its text."""
    hf, target, draft = tiny.served()["lean"]
    pair = decode.Pair(target, None, (), draft)
    prompts = [r.prompt for r in tiny.requests(3)]
    scorer = cascades.Scorer(pair, prompts, 16)
    counts = cascades.decoded(pair, scorer, 16, 2, 3, *setting)
    assert counts == cascades.decoded(pair, scorer, 16, 2, 3, *setting)  # a scorer may be used again
    drafter = decode.PlainCascade(draft) if setting[0] == "plain" else decode.ModelDrafter(draft, 3)
    for i, (prompt, found) in enumerate(zip(prompts, counts)):
        request = decode.Request(prompt, 16, 1.0, rule=setting[1], alpha=setting[2], seed=i)
        tokens = decode.generate(target, [request], drafter).results[0].tokens
        with torch.inference_mode():
            rows = hf(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].log_softmax(1)
        row = dict(zip(cascades.FIELDS, found))
        assert row["logprob"] == pytest.approx(rows.gather(1, torch.tensor(tokens)[:, None]).sum().item(), abs=2e-3)
        assert row["new_tokens"] == 16 and 0 < row["calls"] <= 16
        if setting[0] == "plain":
            assert row["deferred"] == row["calls"] == 16 - row["accepted"]
