# SPDX-License-Identifier: Apache-2.0
"""torch's default dtype and device belong to the caller: whatever they are, decoding and the ops give the same
results."""

from contextlib import contextmanager

import pytest
import torch
from support import tiny
from support.drafters import EVERY

import specdec_kernels as sk
from specdec_kernels import example_calls
from specdec_kernels.decode import BeamDrafter, Request, adapt, beam_search, generate

pytestmark = pytest.mark.usefixtures("one_thread")

DTYPES = torch.bfloat16, torch.float16, torch.float64


@contextmanager
def defaults(kind):
    """Set a default dtype, or the default device "meta", whose tensors have no values."""
    if isinstance(kind, torch.dtype):
        torch.set_default_dtype(kind)
        try:
            yield
        finally:
            torch.set_default_dtype(torch.float32)
    else:
        with torch.device(kind):
            yield


@pytest.fixture(scope="module")
def models():
    return [
        (adapt(m(0), lean=lean), adapt(tiny.nearby(m(0)), lean=lean))
        for m, lean in ((tiny.llama, True), (tiny.gpt2, False))
    ]


def requests_for(kind, takes):
    """Return requests with filters, under rules that read one model's rows or both where the drafter supports them."""
    rules = [("exact", None), ("exact", None), ("lenience", 0.5), ("diff", 0.5), ("chow", 0.4), ("chow_log", 1.0)]
    hot = 0.0 if kind == "greedy" or kind.startswith("adaptive") else 0.9  # adaptive lengths depend on the clock
    rules = [(rule, alpha) for rule, alpha in rules if rule in takes]
    return [
        Request(r.prompt, 6 + i, temperature=hot, top_p=0.95, min_p=0.01, top_k=20, seed=i, rule=rule, alpha=alpha)
        for i, (r, (rule, alpha)) in enumerate(zip(tiny.requests(6), rules if hot else rules[:2]))
    ]


@pytest.mark.parametrize("kind", EVERY)
def test_every_drafter_decodes_the_same(models, kind):
    """Kills: a tensor made without a dtype or a device. A rule that reads both models' rows is tried where the drafter
    supports it."""
    for target, draft in models:
        drafter = EVERY[kind](draft)
        todo = requests_for(kind, ("exact",) if drafter is None else drafter.rules)
        whole = generate(target, todo, drafter, max_batch=2)
        for default in (*DTYPES, "meta"):
            with defaults(default):
                again = generate(target, todo, EVERY[kind](draft), max_batch=2)
            assert [r.error for r in again.results] == [None] * len(todo), default
            assert [r.tokens for r in again.results] == [r.tokens for r in whole.results], default


def test_beams(models):
    for target, draft in models:
        todo = [Request(r.prompt, 6) for r in tiny.requests(2)]
        whole = beam_search(target, todo, 3, BeamDrafter(draft, 6, 3))
        for default in (*DTYPES, "meta"):
            with defaults(default):
                again = beam_search(target, todo, 3, BeamDrafter(draft, 6, 3))
            assert again.results == whole.results and again.errors == [None] * 2


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.device == b.device and torch.equal(a.nan_to_num(7), b.nan_to_num(7))
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b or a != a


@pytest.mark.parametrize("function", sk.registry.FUNCTIONS)
def test_every_op_says_the_same(function):
    """Every op returns the same results on its example calls."""
    op = getattr(sk, function)
    for call in example_calls.few(function, device="cpu", V=40):
        whole = op(**call.arguments)
        for default in (*DTYPES, "meta"):
            with defaults(default):
                again = op(**call.arguments)
            assert same(whole, again) or not isinstance(whole, (torch.Tensor, tuple)), (call.name, default)


def test_example_calls_are_the_same():
    whole = [call.arguments for _, call in example_calls.every_call(device="cpu", V=40)]
    for default in (*DTYPES, "meta"):
        with defaults(default):
            again = [call.arguments for _, call in example_calls.every_call(device="cpu", V=40)]
        assert all(same([*a.values()], [*b.values()]) for a, b in zip(whole, again, strict=True))
