# SPDX-License-Identifier: Apache-2.0
"""A request's tokens depend on its own logits, parameters, seed and offset: bit for bit, whatever runs beside it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import backends
import cases
import checks
import pytest
import torch

PER_REQUEST = ("target_logits", "draft_logits", "draft_tokens", "temperature", "top_k", "top_p", "min_p", "draft_temperature",
               "draft_top_k", "draft_top_p", "draft_min_p", "seed", "offset")


def seeded(B=64, G=4, V=3001, **more):
    """V of three chunks, so that a sum whose shape depends on the team shows."""
    args = cases.chain(41, B, G, V, filtered=True, dtype=torch.bfloat16, kinds=["near", "identical"], **more)
    args.pop("uniforms")
    return args | {"seed": torch.arange(B) * 7919 + 5, "offset": torch.arange(B) % 3 + 2**33}


def of(args, rows):
    return {name: x[rows] if name in PER_REQUEST else x for name, x in args.items()}


def assert_equal(got, want):
    for a, b in zip(got[:4], want[:4]):
        assert torch.equal(a.nan_to_num(9.0), b.nan_to_num(9.0))


def test_alone_and_in_any_order(backend):
    args = seeded()
    verify = backends.call("verify_chain", backend)
    whole = verify(**args)
    assert 0.1 < whole.num_accepted.double().mean() < 3.9
    for order in (torch.randperm(64, generator=torch.Generator().manual_seed(0)), torch.arange(63, -1, -1)):
        assert_equal(verify(**of(args, order)), [x[order] for x in whole[:4]])
    for b in range(0, 64, 5):
        assert_equal(verify(**of(args, slice(b, b + 1))), [x[b : b + 1] for x in whole[:4]])


def test_ragged_and_padded(backend):
    """The same requests ragged, and in a wider batch with room for more drafts."""
    args = seeded(V=1500)
    verify = backends.call("verify_chain", backend)
    whole = verify(**args)
    flat = {"target_logits": args["target_logits"].flatten(0, 1), "draft_logits": args["draft_logits"].flatten(0, 1),
            "draft_tokens": args["draft_tokens"].flatten(), "cu_draft": torch.arange(65) * 4, "max_draft": 4}
    assert_equal(verify(**args | flat), whole)
    wide = verify(**args | flat | {"max_draft": 9})
    assert torch.equal(wide.tokens[:, :5], whole.tokens) and (wide.tokens[:, 5:] == -1).all()


def test_layout_of_the_rows(backend):
    args = seeded(B=16)
    verify = backends.call("verify_chain", backend)
    want = verify(**args)
    for pad in (1, 3, 64):
        rows = {name: cases.strided(args[name], pad) for name in ("target_logits", "draft_logits")}
        assert_equal(verify(**args | rows), want)
    swapped = {name: args[name].transpose(0, 1).contiguous().transpose(0, 1) for name in ("target_logits", "draft_logits")}
    assert_equal(verify(**args | swapped), want)
    same = args["target_logits"][:1]
    assert_equal(verify(**args | {"target_logits": same.expand(16, -1, -1)}), verify(**args | {"target_logits": same.repeat(16, 1, 1)}))


def test_arguments_are_left_alone(backend):
    args = seeded(B=8)
    before = {name: x.clone() for name, x in args.items()}
    backends.run("verify_chain", backend, **args)
    for name, x in args.items():
        assert torch.equal(x, before[name]), name


SCRIPT = """
import json, sys, torch
sys.path.insert(0, {tests!r})
torch.set_num_threads({threads})
import specdec_kernels as sk, test_verify_chain_invariance as t
out = sk.verify_chain(**t.seeded())
print(json.dumps([sk.backends.cpu_isa(), out.tokens.tolist(), out.logprobs.nan_to_num(9).view(torch.int32).tolist()]))
"""


def elsewhere(threads=1, isa=None):
    """The same call in a process of its own: (isa, tokens, bits of the logprobs)."""
    here = Path(__file__).parent
    env = {k: v for k, v in os.environ.items() if k != "SPECDEC_ISA"} | ({"SPECDEC_ISA": isa} if isa else {})
    env["PYTHONPATH"] = os.pathsep.join([str(here.parent), env.get("PYTHONPATH", "")])
    code = SCRIPT.format(tests=str(here), threads=threads)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_number_of_threads():
    assert elsewhere(threads=1) == elsewhere(threads=2)


@pytest.mark.parametrize("isa", ["base", "avx2", "avx512"])
def test_every_instruction_set(isa):
    """Sums of another shape may move a token inside the band, nowhere else."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    if isa != "base" and {"avx2": "avx2", "avx512": "avx512f"}[isa] not in flags:
        pytest.skip(f"this CPU has no {isa}")
    name, tokens, _ = elsewhere(isa=isa)
    assert name == isa
    ref = checks.reference_verify(**seeded())
    differs = (torch.tensor(tokens) != ref.tokens).any(-1)
    assert not (differs & (ref.margin > 1)).any() and differs.sum() <= 1
