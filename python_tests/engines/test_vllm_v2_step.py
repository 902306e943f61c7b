# SPDX-License-Identifier: Apache-2.0
"""A step of V2's verification from raw rows: the distribution of its tokens, what it allocates, and vLLM's own kernels
on the same requests."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import vllm_v2_sampler as world
from support.paths import ROOT
from support.vllm_v2_sampler import MIXED, K, V, mixed
from torch.utils._python_dispatch import TorchDispatchMode

import specdec_kernels as sk
from specdec_kernels import testing
from specdec_kernels.integrations.vllm import metrics, verify_v2
from specdec_kernels.reference import chain_law

T, FEW, DRAFTS = 0.8, 6, 2  # a small vocabulary for distributions
PENALISED = {
    "prompt": [0, 3], "output": [2, 2], "temperature": T, "min_p": 0.08,
    "presence_penalty": 1.5, "repetition_penalty": 1.1, "logit_bias": {1: 0.7, 2: 2.5},
}  # fmt: skip
UNDER_GRAMMAR = {"prompt": [0, 3], "output": [2, 2], "temperature": T, "grammar": True}
ALLOWED = torch.rand(FEW, FEW, generator=torch.Generator().manual_seed(6)) < 0.6  # the grammar's ids after each token


def tables():
    generator = torch.Generator().manual_seed(8)
    return torch.randn(FEW, FEW, generator=generator), torch.randn(FEW, FEW, generator=generator)


def raw(last, grammar):
    """Return the target's rows after these tokens, as they reach ``_verify``: under a grammar they are masked."""
    rows = tables()[0][last]
    return rows.masked_fill(~ALLOWED[last], -torch.inf) if grammar else rows


def law(request, method="token"):
    """Return the distribution of a step's tokens, by enumeration in float64."""

    def p(prefix):
        z = (
            world.written(request, list(prefix), raw(prefix[-1] if prefix else 2, request.get("grammar")))
            .double()
            .numpy()
        )
        mass = np.exp((z - z.max()) / T)
        mass[mass < request.get("min_p", 0)] = 0
        return mass / mass.sum()

    q = lambda prefix: softmax(tables()[1][prefix[-1] if prefix else 2] / T)
    return chain_law(p, q, DRAFTS, method=method)


def softmax(z):
    return z.double().softmax(0).numpy()


def step(request, B, seed=1):
    """Return the requests, slots and arguments of a step of B such requests, with drafts drawn from rows by slot."""
    generator = torch.Generator().manual_seed(seed)
    slots = torch.randperm(B + 9, generator=generator)[:B]
    tokens, store = torch.full((B, 1), 2), torch.full((B + 9, DRAFTS, FEW), torch.nan)
    for i in range(DRAFTS):
        rows = tables()[1][tokens[:, -1]]
        store[slots, i] = rows
        tokens = torch.cat([tokens, torch.multinomial((rows / T).double().softmax(1), 1, generator=generator)], 1)
    seeds = torch.randint(1 << 62, (B,), generator=generator).tolist()
    requests = [request | {"drafts": x, "seed": s} for x, s in zip(tokens[:, 1:].tolist(), seeds)]
    args = world.batch(requests, slots, raw(tokens.flatten(), request.get("grammar")), store)
    return requests, slots, args


def compared(tokens, count, request, method="token"):
    return testing.check_tokens([row[:n] for row, n in zip(tokens.tolist(), count.tolist())], law(request, method))


@pytest.mark.slow
@pytest.mark.parametrize("draws, least", [(8_000, 0.07), pytest.param(20_000, 0.05, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("method", ["token", "block"])
@pytest.mark.parametrize("request_", [PENALISED, UNDER_GRAMMAR], ids=["penalties, min-p and a bias", "grammar"])
def test_joint_law(request_, method, draws, least):
    requests, slots, args = step(request_, draws)
    sampler = world.sampler(requests, slots, len(slots) + 9, FEW)
    _, tokens, count = world.verify(world.rejection_sampler(sampler, DRAFTS, method), **args)
    result = compared(tokens, count, request_, method)
    print(result)
    assert result.passed and result.detects < least, result


@pytest.mark.slow
@pytest.mark.parametrize("left_out", ["presence_penalty", "repetition_penalty", "min_p", "logit_bias"])
def test_without_one_of_them_the_law_is_another(left_out):
    requests, slots, args = step(PENALISED, 4_000)
    lacking = [{name: x for name, x in request.items() if name != left_out} for request in requests]
    sampler = world.sampler(lacking, slots, len(slots) + 9, FEW)
    _, tokens, count = world.verify(world.rejection_sampler(sampler, DRAFTS), **args)
    assert not compared(tokens, count, PENALISED).passed


class Allocations(TorchDispatchMode):
    """A mode that records operators' results in new memory, of at least one byte for each entry of [rows, width]."""

    def __init__(self, rows, width):
        super().__init__()
        self.limit, self.seen = rows * width, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = {
            x.untyped_storage().data_ptr() for x in torch.utils._pytree.tree_leaves((args, kwargs)) if is_tensor(x)
        }
        result = function(*args, **(kwargs or {}))
        for x in torch.utils._pytree.tree_leaves(result):
            if is_tensor(x) and x.untyped_storage().data_ptr() not in given and x.nbytes >= self.limit:
                self.seen.append(f"{function}: {list(x.shape)}")
        return result


def is_tensor(x):
    return isinstance(x, torch.Tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masks", [False, True])
def test_no_scratch_as_large_as_the_rows(dtype, masks):
    """Whatever their parameters, a step's requests need no tensor with a byte for each entry of the rows."""
    width = 1200
    generator = torch.Generator().manual_seed(1)
    slots = torch.randperm(len(MIXED) + 9, generator=generator)[: len(MIXED)]
    rows = sum(len(r.get("drafts", [])) + 1 for r in MIXED)
    requests = [r | {"grammar": True} for r in MIXED]  # minimum lengths look at the rows too
    sampler = world.sampler(requests, slots, len(MIXED) + 9, width)
    sampler.return_sampling_mask = masks
    words = sampler.logits_processors[2].bad_word_token_ids
    words.gpu = torch.nn.functional.pad(words.gpu, (0, 1000), value=9)  # [S, 1024], as vLLM's own
    logits = torch.randn(rows, width, generator=generator).to(dtype)
    args = world.batch(requests, slots, logits, torch.randn(len(MIXED) + 9, K, width, generator=generator).to(dtype))
    with Allocations(rows, width) as allocations:
        out, _, count = world.verify(world.rejection_sampler(sampler, K), **args)
        if masks:
            support = sk.support(verify_v2.sampling_mask_rows(out), 8)
    assert allocations.seen == [] and out is logits
    assert not masks or support.counts.max() > 8
    with allocations:
        torch.empty_like(logits, dtype=torch.float32).copy_(logits)  # vLLM's sampler begins with such a copy
    assert len(allocations.seen) == 1


def moved(x):
    """Return x with its tensors on the GPU."""
    if isinstance(x, torch.Tensor):
        return x.to("cuda")
    if isinstance(x, list):
        return [moved(y) for y in x]
    if isinstance(x, dict):
        return {name: moved(y) for name, y in x.items()}
    return type(x)(**moved(vars(x))) if isinstance(x, SimpleNamespace) else x


@pytest.mark.parametrize("masks", [False, True])
def test_nothing_waits_for_the_device(monkeypatch, masks):
    """On a simulated GPU no op mixes devices, nothing is waited for or uploaded, and the tokens are the same."""
    devices = pytest.importorskip("bench.devices", reason="needs the source tree's bench")
    sampler, _, args = mixed()
    sampler.return_sampling_mask = masks
    args["draft_logits"] = torch.randn(len(MIXED) + 9, K, V, generator=torch.Generator().manual_seed(3))
    wanted = world.verify(world.rejection_sampler(sampler, K), **args)
    # vLLM's kernel finds the markers in the committed text; the call above has stored their places
    monkeypatch.setattr(world, "apply_thinking_budget", lambda *args: None)
    monkeypatch.setattr(metrics, "_statuses", {})  # counts of another simulated GPU
    with devices.watch() as seen:
        args = {name: moved(x) for name, x in args.items()}
        of = world.rejection_sampler(moved(sampler), K)
        seen.synchronisations.clear(), seen.uploads.clear()
        _, tokens, count = world.verify(of, **args)
        if masks:
            verify_v2.sampling_mask_rows(args["logits"])
        assert seen.synchronisations == seen.uploads == []
        assert tokens.is_cuda and torch.equal(tokens.cpu(), wanted[1]) and torch.equal(count.cpu(), wanted[2])
        bool(tokens.any())
        assert seen.synchronisations


VLLM = os.environ.get("SPECDEC_TEST_VLLM")
beside_vllm = pytest.mark.skipif(not VLLM, reason="SPECDEC_TEST_VLLM names no environment with vLLM: make test-vllm")


@pytest.fixture
def run_vllm(tmp_path):
    """Return a function that runs steps in vLLM's environment, by vLLM and by the plugin: see vllm_v2_engine."""

    def run(steps, what="verify"):
        torch.save(steps, tmp_path / "steps.pt")
        variables = {"TRITON_INTERPRET": "1", "SPECDEC_VLLM": "1", "PYTHONPATH": f"{ROOT}:{ROOT}/python_tests"}
        program = [str(Path(VLLM) / "bin/python"), "-m", "support.vllm_v2_engine", what, "steps.pt", "out.pt"]
        subprocess.run(program, cwd=tmp_path, env=os.environ | variables, check=True, timeout=900)
        return torch.load(tmp_path / "out.pt")

    return run


def job(requests, slots, args, width, K, method="standard"):
    host = ("idx_mapping_np", "seq_lens_upper_bound_np")
    args = {name: torch.from_numpy(x) if name in host else x for name, x in args.items()}
    return {"requests": requests, "slots": slots, "args": args, "V": width, "K": K, "method": method}


@pytest.mark.thorough
@beside_vllm
def test_beside_vllms_own_sampler(run_vllm):
    """vLLM's classes on the same requests: rows agree within rounding, and greedy tokens are equal."""
    steps, greedy = [], [r | {"temperature": 0.0} for r in MIXED]
    for seed in range(4):
        sampler, slots, args = mixed(seed)
        if seed:  # the target's own tokens as drafts, so that many are accepted
            args = with_drafts_of_the_target(args, slots)
        steps.append(job(greedy if seed else MIXED, slots, args, V, K))
    results = run_vllm(steps)
    kinds = {"penalties": sk.Penalties, "bias": sk.Bias, "allowed": sk.Allowed}
    rows = sk.Rows(**{name: kinds[name](**x) if name in kinds else x for name, x in results[0]["rows"].items()})
    kept = unpacked(sk.support(rows, 0).bits)
    theirs = results[0]["theirs"][0].double().log_softmax(1)
    assert torch.equal(kept, theirs > -1e6)  # 1e9 at a spent budget's marker leaves the others about -1e9
    assert 10 < kept.sum(1).float().median() < V
    listed = sk.top_logprobs(rows, V)
    mine = torch.full_like(theirs, -torch.inf).scatter_(1, listed.ids.long(), listed.logprobs.double())
    assert (mine - theirs)[kept].abs().max() < 1e-5
    for result in results[1:]:
        (_, tokens, count), (own, number) = result["theirs"], result["mine"]
        shorter = torch.arange(K + 1) < count[:, None]
        assert torch.equal(number, count) and torch.equal(own[shorter], tokens[shorter])
        assert count.max() > 2 and count.min() == 1


def with_drafts_of_the_target(args, slots):
    """Return the arguments with about two of three drafts replaced by the likeliest id of the row before them."""
    best = args["logits"].argmax(1).to(torch.int32)
    ids = args["draft_sampled"].clone()
    is_draft = args["expanded_local_pos"] > 0
    chosen = is_draft & (torch.arange(len(ids)) % 3 > 0)
    ids[chosen] = best.roll(1)[chosen]
    return args | {"draft_sampled": ids, "verify_draft_sampled": ids}


def unpacked(bits):
    return ((bits[:, :, None] >> torch.arange(32)) & 1).bool().flatten(1)[:, :V]


@pytest.mark.thorough
@beside_vllm
def test_vllms_own_kernels_have_the_same_law(run_vllm):
    """vLLM's distribution is also the enumerated one, with penalties, min-p and a bias, and with a grammar."""
    asked = (PENALISED, UNDER_GRAMMAR)
    made = [step(request, 200) for request in asked]
    results = run_vllm([job(*each, FEW, DRAFTS) for each in made])
    for request, result in zip(asked, results):
        for tokens, count in (result["theirs"][1:], result["mine"]):
            report = compared(tokens, count, request)
            print(request, report)
            assert report.passed and report.detects < 0.3


@pytest.mark.thorough
@beside_vllm
def test_vllms_own_drafter_with_filters(run_vllm):
    """vLLM's kernel stores the rows of requests, not those of padding. Drafts are drawn with the requests' filters."""
    generator = torch.Generator().manual_seed(5)
    slots, rows = torch.tensor([4, 1, 7]), torch.randn(6, V, generator=generator)
    requests = [{"prompt": [1], "seed": s, "temperature": 0.9, "top_k": k} for s, k in ((5, 3), (6, 1), (7, 0))]
    step = {"requests": requests, "slots": slots, "V": V, "K": K, "rows": rows, "positions": torch.arange(6) + 20}
    result = run_vllm(step, "draft")
    assert result["patched"] == ["_copy_request_inputs", "sample_draft"]
    want = torch.full_like(result["kept"], torch.nan)
    want[slots, 1] = rows[:3]
    torch.testing.assert_close(result["kept"], want, rtol=0, atol=0, equal_nan=True)
    drawn = sk.sample(
        sk.Rows(rows[:3], temperature=0.9, top_k=torch.tensor([3, 1, 0])),
        seed=torch.tensor([5, 6, 7]),
        offset=torch.arange(3) + 20,
        slot=1,
    )
    assert torch.equal(result["tokens"][:3], drawn.tokens[:, 0]) and result["tokens"].shape == (6,)
