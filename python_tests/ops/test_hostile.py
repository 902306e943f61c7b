# SPDX-License-Identifier: Apache-2.0
"""Hostile calls of every op, by hypothesis: a clean error, or what the docstring promises, the same bits for a request
alone. gates/hostile.py makes the calls and knows the promises. In make test-all there are ten times as many, and others
each time."""

import collections
import random

import hypothesis
import pytest
import torch
from gates import hostile
from hypothesis import strategies as st
from support import backends, flat, tiers

import specdec_kernels as sk
from specdec_kernels.backends import dispatch

THOROUGH = tiers.TIER == "all"
EXAMPLES = {"cpu": 30, "cuda-on-cpu": 4, "triton-interpret": 2}


def test_every_op_is_in():
    assert sorted(hostile.OPS) == sorted(hostile.CHECKS) == dispatch.ops()


def without_subnormals(x):
    """Triton's interpreter takes a subnormal bfloat16 for another number: 0 up to 2^-127."""
    if not isinstance(x, torch.Tensor) or x.dtype != torch.bfloat16:
        return x
    subnormal = (x != 0) & (x.abs() < torch.finfo(x.dtype).tiny)
    return torch.where(subnormal, 0, x) if subnormal.any() else x


@pytest.mark.parametrize("op", hostile.OPS)
@pytest.mark.slow
def test_hostile_calls(op_backend, op):
    n = EXAMPLES.get(op_backend, 10)

    @hypothesis.settings(max_examples=10 * n if THOROUGH else n, derandomize=not THOROUGH, deadline=None, database=None,
                         suppress_health_check=list(hypothesis.HealthCheck))  # fmt: skip
    @hypothesis.given(st.randoms(use_true_random=False), st.integers(0, 4))
    def holds(rng, b):
        args = hostile.call(op, rng)
        if op_backend == "triton-interpret":
            args = {name: without_subnormals(x) for name, x in args.items()}
        if not backends.serves(op_backend, op, args):
            args = {name: x for name, x in args.items() if name not in ("rule", "alpha")}
        error = hostile.check(op, args, b=b)
        if op_backend == "cpu":
            return
        run = backends.call(op, op_backend)
        if error is None:
            assert hostile.check(op, args, lambda op, **args: run(**args), b) is None
            return
        try:  # what raises on the CPU may be a matter of status elsewhere
            out = run(**args)
        except (TypeError, ValueError, RuntimeError) as refused:
            assert str(refused).startswith(op + ": ")
            return
        if op.startswith("verify"):
            hostile.check_emitted(
                {}, out, max(args["target_logits"].size(-1), 2**63 - 1 if "bonus_tokens" in args else 0)
            )

    holds()


def test_the_calls_are_hostile():
    """Not so much that all are refused; every status comes up, and every rule."""
    seen, refused, names = collections.Counter(), 0, set()
    for i in range(300):
        op = ("verify_chain", "verify_tree")[i % 2]
        args = hostile.call(op, random.Random(i))
        names.add(args.get("rule") if isinstance(args.get("rule"), str) else None)
        try:
            out = flat.call(getattr(sk, op), **args)
        except (RuntimeError, ValueError):
            refused += 1
        else:
            seen.update(out.status.tolist())
    assert 3 <= refused <= 90
    bits = [bit for bit in (1, 2, 4) if any(status & bit for status in seen)]
    assert bits == [1, 2, 4] and seen[0] > 50 and len(names) > 12


MUTANTS = {
    "a token outside the vocabulary": lambda out, args: out._replace(
        tokens=out.tokens + (out.tokens >= 0) * args["target_logits"].size(-1)
    ),
    "no token": lambda out, args: out._replace(tokens=torch.full_like(out.tokens, -1)),
    "a batch mate shows": lambda out, args: out._replace(logprobs=out.logprobs + len(out.tokens) * (out.tokens >= 0)),
    "a bit that says nothing": lambda out, args: out._replace(status=out.status | 16),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_answer_is_caught(name):
    for op in ("verify_chain", "verify_tree"):
        caught = 0
        for i in range(30):
            args = hostile.call(op, random.Random(i))
            try:
                hostile.check(op, args, lambda op, **args: MUTANTS[name](getattr(sk, op)(**args), args), b=i)
            except AssertionError:
                caught += 1
        assert caught > 5, op
