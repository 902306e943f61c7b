# SPDX-License-Identifier: Apache-2.0
"""The adapters in examples/ that an engine would carry: their switch, probe, fallback and output distribution."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.paths import ROOT, TESTS

from bench.engines.environment import of_vllm
from specdec_kernels import testing
from specdec_kernels.integrations import sglang

pytestmark = pytest.mark.one_backend


@pytest.fixture
def adapter(monkeypatch):
    """Return a function that imports an adapter anew, with its switch set."""

    def load(name, switch="1"):
        monkeypatch.syspath_prepend(str(ROOT / "examples"))
        monkeypatch.setenv(f"{name.upper()}_USE_SPECDEC", switch)
        sys.modules.pop(f"{name}_adapter", None)
        return importlib.import_module(f"{name}_adapter")

    return load


def probabilities(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).mul(1.5).softmax(-1)


def metadata(n, temperature=1.0, generators=None):
    given = torch.as_tensor(temperature).expand(n)
    return SimpleNamespace(all_greedy=not given.any(), temperature=given, generators=generators or {})


def test_vllm_switch_and_probe(adapter):
    z, q = torch.zeros(3, 5), torch.full((3, 5), 0.2)
    assert not adapter("vllm", "0").serves(z, q)
    vllm = adapter("vllm")
    assert vllm.serves(z, q) and vllm.serves(z.bfloat16(), None)
    assert not vllm.serves(z.double(), q) and not vllm.serves(z, q.double())
    assert not vllm.serves(z.T, q) and not vllm.serves(z, q.T)
    wanted = "verify_chain: target.logits must be float32, bfloat16 or float16, got float64"
    assert vllm.probe("cpu", torch.float64, None) == wanted
    assert "verify_chain: draft.logits must be" in vllm.probe("cpu", torch.float32, torch.float64)


@pytest.mark.parametrize("one_hot", [False, True])
def test_vllm_law_of_a_step(adapter, one_hot):
    """Sampled and greedy requests alternate in one batch. A sampled request's tokens, from the draft to the bonus
    token, follow the target's joint distribution. A greedy request gets the argmax."""
    vllm, n, V = adapter("vllm"), 40_000, 4
    torch.manual_seed(0)
    p, q = probabilities(2, V, seed=1), probabilities(1, V, seed=2)[0]
    drafted = torch.full((n,), 2) if one_hot else torch.multinomial(q, n, replacement=True)
    bonus = torch.multinomial(p[1], n, replacement=True)
    rows = p[0].log().expand(2 * n, V).clone()
    rows[1::2] = torch.tensor([0.0, 3.0, 1.0, 2.0])  # the greedy request's row
    ids = torch.stack([drafted, torch.ones(n, dtype=torch.int64)], 1).flatten().int()
    out = vllm.rejection_sample(
        ids,
        [1] * (2 * n),
        1,
        torch.arange(1, 2 * n + 1, dtype=torch.int32),
        None if one_hot else q.expand(2 * n, V).contiguous(),
        rows,
        torch.stack([bonus, torch.full((n,), 3)], 1).view(-1, 1).int(),
        metadata(2 * n, torch.tensor([1.0, 0.0]).repeat(n)),
    )
    assert out.dtype == torch.int32 and out.shape == (2 * n, 2)
    assert (out[1::2] == torch.tensor([1, 3])).all()
    mine, law = out[::2], {}
    for x in range(V):
        accepted = float(p[0, x]) * (x == 2) if one_hot else min(float(p[0, x]), float(q[x]))
        law[x, -1] = float(p[0, x]) - accepted
        for y in range(V):
            law[x, y] = accepted * float(p[1, y])
    law = {cell: x for cell, x in law.items() if x > 1e-12}
    counts = dict.fromkeys(law, 0)
    for cell, count in zip(*(x.tolist() for x in torch.unique(mine, dim=0, return_counts=True))):
        counts[tuple(cell)] = count
    assert counts.keys() == law.keys() and testing.check_counts(counts, law)


def test_vllm_requests_with_a_seed_repeat(adapter):
    """A request with a seed repeats its tokens whatever shares its batch. Such requests have one or two drafts; those
    added have 4, 0 and 3."""
    vllm, n, V = adapter("vllm"), 30, 50

    def run(counts, seeded):
        D = sum(counts)
        q, rows = probabilities(2 * n, V, seed=3), probabilities(2 * n, V, seed=4).log()
        some = torch.arange(D) % (2 * n)  # a request's rows depend on its number alone
        ends = torch.tensor(counts).cumsum(0)
        for b, end in enumerate(ends):
            some[end - counts[b] : end] = torch.arange(counts[b]) + 2 * (b % n)
        ids = q[some].argmax(1).int()
        generators = {b: torch.Generator().manual_seed(b) for b in seeded}
        out = vllm.rejection_sample(
            ids, counts, max(counts), ends.int(), q[some], rows[some], torch.zeros(len(counts), 1).int(),
            metadata(len(counts), generators=generators),
        )  # fmt: skip
        return out, [generators[b].get_state() for b in seeded]

    few, states = run([1, 2] * (n // 2), range(n))
    again, same_states = run([1, 2] * (n // 2) + [4, 0, 3], range(n))
    assert torch.equal(few, again[:n, :3]) and all(map(torch.equal, states, same_states))
    other, _ = run([1, 2] * (n // 2), range(0, n, 2))
    assert torch.equal(other[::2], few[::2]) and not torch.equal(other[1::2], few[1::2])
    idle = torch.Generator().manual_seed(1)
    before = idle.get_state()
    vllm.rejection_sample(
        torch.zeros(0).int(), [0], 0, torch.zeros(1).int(), None, torch.zeros(0, V), torch.tensor([[7]]),
        metadata(1, generators={0: idle}),
    )  # fmt: skip
    assert torch.equal(idle.get_state(), before)  # as in vLLM, no number is drawn without a draft


def test_sglang_switch_probe_and_fallback(adapter):
    calls = []
    theirs = lambda *args, **kwargs: calls.append(kwargs.get("threshold_acc", "positional"))
    assert adapter("sglang", "0").verify_fn(theirs, True) is theirs
    module = adapter("sglang")
    B, S, V = 6, 4, 7
    for rejection in (True, False):
        verify = module.verify_fn(theirs, rejection)
        p, q = probabilities(B, S, V, seed=5), probabilities(B, S - 1 if rejection else S, V, seed=6)
        links = torch.arange(1, S + 1).where(torch.arange(1, S + 1) < S, -1).expand(B, S), torch.full((B, S), -1)
        step = [torch.randint(V, (B, S)), torch.arange(B * S).view(B, S), *links, torch.rand(B, S), torch.rand(B)]
        buffers = lambda: [torch.full((B * S,), -7).int(), torch.full((B, S), -7).int(), torch.zeros(B).int()]
        ours = "chain_speculative_sampling_triton" if rejection else "tree_speculative_sampling_target_only"
        got, want = buffers(), buffers()
        verify(*got, *step, p, q.clone(), 1.0, 1.0, True)
        getattr(sglang, ours)(*want, *step, p, q.clone())
        assert all(map(torch.equal, got, want)) and calls == []
        verify(*buffers(), *step, p.double(), q.double(), threshold_acc=0.5)  # our ops take no float64 rows
        assert calls.pop() == 0.5
        if rejection:
            verify(*buffers(), *step, p, q.double())
            assert calls.pop() == "positional"
        verify(*buffers(), *step, p, q, threshold_single=0.5, threshold_acc=0.5)
        assert calls == []


ENGINE = """
import json, sys
sys.path[:0] = [sys.argv[2], sys.argv[3]]
import functools, run_vllm, specdec_kernels, vllm_adapter as specdec
from specdec_kernels.integrations.vllm.verify import expand_batch_to_tokens  # vLLM's own is broken on the CPU
from vllm.v1.sample import rejection_sampler
rejection_sampler.expand_batch_to_tokens = functools.partial(expand_batch_to_tokens, None)
theirs, steps = rejection_sampler.rejection_sample, []

def rejection_sample(ids, counts, longest, ends, probs, logits, bonus, metadata, synthetic_mode=False, *more, **named):
    steps.append(len(ids))
    if not synthetic_mode and specdec.serves(logits, probs):  # the two lines
        return specdec.rejection_sample(ids, counts, longest, ends, probs, logits, bonus, metadata)
    return theirs(ids, counts, longest, ends, probs, logits, bonus, metadata, synthetic_mode, *more, **named)

rejection_sampler.rejection_sample = rejection_sample
print(json.dumps([run_vllm.run(sys.argv[1], job) | {"steps": len(steps)} for job in json.load(sys.stdin)]))
"""


@pytest.mark.thorough
@pytest.mark.skipif("SPECDEC_TEST_VLLM" not in os.environ, reason="SPECDEC_TEST_VLLM names no environment")
def test_in_vllm_itself():
    """With the two lines in the engine, greedy text with drafts equals that without, and the target as its own draft is
    nearly always accepted at temperature 1. (vLLM's own kernels accept 16 of 708 such drafts on the CPU.)"""
    folder = Path(os.environ["SPECDEC_TEST_VLLM"]).absolute()
    environment = of_vllm(False, folder) | {"VLLM_USE_SPECDEC": "1", "PYTHONPATH": str(ROOT)}
    prompts = ["The capital of France is", "def fibonacci(n):\n", "Once upon a time there was a"]

    def job(draft, temperature):
        spec = draft and {
            "model": str(folder / "models" / draft),
            "method": "draft_model",
            "num_speculative_tokens": 3,
            "draft_sample_method": "probabilistic",
        }
        call = {"prompts": prompts, "seeds": [1, 2, 3], "sampling": {"max_tokens": 40, "temperature": temperature}}
        return {"speculative": spec, "dtype": "float32", "calls": [call]}

    jobs = [job(None, 0.0), job("draft", 0.0), job("target", 1.0)]
    command = [
        folder / "bin" / "python",
        "-c",
        ENGINE,
        folder / "models" / "target",
        TESTS / "engines",
        ROOT / "examples",
    ]
    done = subprocess.run(
        command, input=json.dumps(jobs), env=environment, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    plain, greedy, own = json.loads(done.stdout.splitlines()[-1])
    assert greedy["tokens"] == plain["tokens"] and plain["steps"] == 0 < greedy["steps"] and greedy["accepted"] > 0
    assert own["accepted"] >= 0.9 * own["drafted"] > 0
