# SPDX-License-Identifier: Apache-2.0
"""The rejection sampling of vLLM's V2 model runner: the distribution of a step with rows by slot, also against vLLM's
own."""

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from support.vllm_v2_step import METHODS, RATES, K, V, step, tables

from specdec_kernels import testing
from specdec_kernels.integrations.vllm.verify_v2 import rejection_sample
from specdec_kernels.reference import chain_law


def never(*args, **kwargs):
    raise AssertionError("vLLM's own function was called")


def ours(*args, **named):
    return rejection_sample(never, *args, **named)


def softmax(z, temperature):
    return np.exp(np.asarray(z, dtype=np.float64) / temperature) / np.exp(np.asarray(z, np.float64) / temperature).sum()


def wanted(method, one_hot, temperature=0.8):
    """Return the distribution of a step's output, by enumeration."""
    target, drafter = (table.numpy() for table in tables())
    behind = lambda prefix: prefix[-1] if prefix else 0
    p = [softmax(row, temperature) for row in target]
    q = [np.eye(V)[row.argmax()] if one_hot else softmax(row, temperature) for row in drafter]
    if method != "synthetic":
        how = {"standard": "token", "block": "block"}[method]
        return chain_law(lambda t: p[behind(t)], lambda t: q[behind(t)], K, method=how)
    law, kept = Counter(), {(): 1.0}
    for rate in (*RATES.tolist(), 0.0):  # after the last draft nothing is left to accept
        for prefix, chance in kept.items():
            for x in range(V):
                law[(*prefix, x)] += chance * (1 - rate) * p[behind(prefix)][x]
        kept = {(*t, x): c * rate * q[behind(t)][x] for t, c in kept.items() for x in range(V)}
    return law


def compared(result, law):
    tokens, count = result
    return testing.check_tokens([row[:n] for row, n in zip(tokens.tolist(), count.tolist())], law)


@pytest.mark.slow
@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_joint_law(method, one_hot):
    result = compared(ours(**step(40_000, one_hot), **METHODS[method]), wanted(method, one_hot))
    assert result.passed and result.detects < 0.03, result


@pytest.mark.slow
@pytest.mark.parametrize("mutant", ["rows by request", "the row's own temperature", "drafts a row early"])
def test_a_wrong_mapping_is_caught(mutant):
    args = step(40_000)
    if mutant == "rows by request":
        args["draft_logits"] = args["draft_logits"].nan_to_num(0.0).roll(1, 1)
    if mutant == "the row's own temperature":
        args["draft_logits"] = args["draft_logits"] * 0.8
    if mutant == "drafts a row early":
        args["draft_sampled"] = args["draft_sampled"].roll(-1)
    assert not compared(ours(**args), wanted("standard", False)).passed


def test_shapes_and_a_greedy_batch():
    """Tokens [B, K+1] int64 and counts [B] int32. A greedy request emits its argmax, whatever its drafts."""
    lengths = torch.tensor([2, 0, 1, 2, 0, 2])
    args = step(6, greedy=True, lengths=lengths)
    tokens, count = ours(**args)
    assert tokens.shape == (6, K + 1) and tokens.dtype == torch.int64 and count.dtype == torch.int32
    best = args["target_logits"].argmax(1)
    for b, (row, n) in enumerate(zip(tokens.tolist(), count.tolist())):
        first, end = args["cu_num_logits"][b : b + 2].tolist()
        drafts = args["draft_sampled"][first + 1 : end].tolist()
        kept = next((i for i, d in enumerate(drafts) if d != best[first + i]), len(drafts))
        assert n == kept + 1 and row[:n] == [*drafts[:kept], int(best[first + kept])]


def test_a_placeholder_ends_a_draft_and_rows_behind_the_batch_are_not_read():
    """An id of -1 ends a draft. Target rows after the end of cu_num_logits are not read (adaptive verification trims
    drafts on the device)."""
    args = step(30)
    args["draft_sampled"][1::3] = -1
    plain = ours(**args)
    assert (plain[1] == 1).all()
    stale = args | {"target_logits": torch.cat([args["target_logits"], torch.full((9, V), torch.nan)])}
    stale["draft_sampled"] = torch.cat([args["draft_sampled"], torch.full((9,), 1 << 30, dtype=torch.int32)])
    again = ours(**stale)
    assert torch.equal(again[0], plain[0]) and torch.equal(again[1], plain[1])


def shard(args, requests):
    """Return the step of some requests, as the rank that owns them has it: the store and tensors by slot stay whole."""
    rows = [torch.arange(*args["cu_num_logits"][b : b + 2].tolist()) for b in requests.tolist()]
    rows_of = torch.cat(rows) if rows else torch.zeros(0, dtype=torch.int64)
    counts = torch.tensor([len(x) for x in rows], dtype=torch.int32)
    one_row = ("target_logits", "draft_sampled", "pos", "expanded_idx_mapping", "expanded_local_pos")
    cu = torch.cat([torch.zeros(1, dtype=torch.int32), counts.cumsum(0).to(torch.int32)])
    mine = {"cu_num_logits": cu, "idx_mapping": args["idx_mapping"][requests]}
    return args | mine | {name: args[name][rows_of] for name in one_row}


@pytest.mark.parametrize("method", METHODS)
def test_the_same_tokens_whatever_the_shard(method):
    """Batch-sharded sampling: each rank verifies its own requests, and may own none."""
    args = step(60, lengths=torch.arange(60) % (K + 1))
    tokens, count = ours(**args, **METHODS[method])
    order = torch.randperm(60, generator=torch.Generator().manual_seed(4))
    for mine in (order[:20], order[20:], order[:0]):
        some = ours(**shard(args, mine), **METHODS[method])
        assert torch.equal(some[0], tokens[mine]) and torch.equal(some[1], count[mine])


@pytest.mark.parametrize(
    "asked", [{"contexts": torch.zeros(3, 1)}, {"watermark_key": 7}, {"fly_window_size": 2}, {"unheard_of": None}]
)
def test_what_is_left_to_vllm(asked):
    args = step(3)
    told = rejection_sample(lambda *given, **named: (given, named), **args, **asked)
    assert all(x is y for x, y in zip(told[0], args.values())) and told[1].keys() == asked.keys()
    off = {"contexts": None, "fly_window_size": 0, "fly_entropy_threshold": 0.3, "use_fp64": True}
    assert ours(**args, **off)[0].shape == (3, K + 1)


VLLM = os.environ.get("SPECDEC_TEST_VLLM")


@pytest.mark.thorough
@pytest.mark.skipif(not VLLM, reason="SPECDEC_TEST_VLLM names no environment with vLLM: make test-vllm")
@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_beside_vllms_own_kernels(method, one_hot, run_python):
    """vLLM's module, interpreted, on the same steps: its distribution is also the enumerated one, and acceptances
    agree.

    After a synthetic rejection vLLM draws from the draft's residual, so only counts are compared there.
    """
    B = 600
    theirs = run_python(
        "import sys, torch; sys.path[:0] = ['.', 'python_tests']\n"
        "from support import vllm_v2_step as t; from bench.peers.vllm import rejection_sample\n"
        "import triton.language as tl, triton.language.extra.libdevice as device\n"
        "device.log1p = lambda x: tl.log(1.0 + x)  # the interpreter has no libdevice\n"
        "from triton.runtime import interpreter; from support.vllm_v2_engine import hasten\n"
        "hasten(interpreter, tl)\n"
        f"args = t.step({B}, {one_hot})\n"
        f"tokens, count = rejection_sample()(**args, **t.METHODS[{method!r}])\n"
        "torch.save((tokens, count), sys.argv[1])",
        SPECDEC_BENCH_VLLM=str(next((Path(VLLM) / "lib").glob("python3*/site-packages"))),
        TRITON_INTERPRET="1",
    )
    mine = ours(**step(B, one_hot), **METHODS[method])
    law = wanted(method, one_hot)
    assert compared(mine, law).passed
    if method != "synthetic":
        assert compared(theirs, law).passed
    spread = float((theirs[1].double().var() + mine[1].double().var()) / B) ** 0.5
    assert abs(float(theirs[1].double().mean() - mine[1].double().mean())) < 5 * spread
