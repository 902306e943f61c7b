# SPDX-License-Identifier: Apache-2.0
"""Every op under CUDA-graph capture and replay, on other streams, on another device, and never waiting for the device.

The last test runs the same checks without a GPU, on a stand-in that replays what it recorded: it shows that they run,
and that they catch an op that cannot be replayed.
"""

import pytest
import torch
from support import backends, graphs

from specdec_kernels.backends import dispatch
from specdec_kernels.reference import build_tree

B, G, V = 5, 3, 3001  # three chunks, the last with an odd tail
GPU = ("cuda", "triton")
TREE = build_tree(
    torch.randint(-1, 3, (B, 4, 3), generator=torch.Generator().manual_seed(0))
)  # a tuple: replays keep it


def one(seed):
    """Inputs of every op, as keyword arguments of its public function; same shapes for every seed."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.empty(shape).normal_(0, 3, generator=generator)

    rows, laws = normal(B, V), normal(2, B, V).softmax(-1)
    randomness = {"seed": torch.arange(B) + 100 * seed, "offset": torch.full((B,), seed)}
    step = {"target_logits": normal(B, G + 1, V).bfloat16(), "draft_logits": normal(B, G, V).bfloat16()}
    step["draft_logits"][::2] = step["target_logits"][::2, :G]  # some are accepted throughout, some are not
    step["draft_tokens"] = (
        step["draft_logits"].float().softmax(-1).flatten(0, 1).multinomial(1, generator=generator).view(B, G)
    )
    drafts = torch.randint(-1, 3, (B, 4, 3), generator=generator)
    nodes = normal(2, B, 13, V).bfloat16() / 8
    nodes[..., :3] += 12  # the drafted tokens are likely
    branches = {"target_logits": nodes[0], "draft_logits": nodes[1]} | randomness
    parents = (torch.rand(B, 40, generator=generator) * torch.arange(40)).long().where(torch.arange(40) > 0, -1)
    mixed = {"rule": torch.arange(B) % 10, "alpha": torch.full((B,), 0.4)}  # codes of laws
    warm = {"temperature": torch.full((B,), 0.7), "top_k": torch.full((B,), 50), "top_p": torch.full((B,), 0.9)}
    return {
        "uniforms": ("uniforms", randomness | {"n": 7}),
        "accept": (
            "accept",
            {"p": laws[0], "q": laws[1], "u": torch.rand(B, V, dtype=torch.float64, generator=generator)},
        ),
        "residual": ("residual", {"p": laws[0], "q": laws[1]}),
        "kseq_rho": ("kseq_rho", {"p": rows, "q": normal(B, V), "k": torch.arange(B) + 2}),
        "row_gap": ("row_gap", {"p": rows, "q": normal(B, V)}),
        "row_gap, probabilities": ("row_gap", {"p": laws[0], "q": laws[1], "kind": "probs"}),
        "kseq_rho, probabilities": (
            "kseq_rho",
            {"p": laws[0], "q": laws[1], "k": torch.arange(B) + 2, "kind": "probs"},
        ),
        "build_tree": ("build_tree", {"draft_tokens": drafts}),
        "tree_mask": ("tree_mask", {"parents": parents, "prefix_len": randomness["seed"], "num_keys": 70}),
        "tree_mask, packed": (
            "tree_mask",
            {"parents": parents, "prefix_len": randomness["seed"], "format": "uint8", "num_keys": 70},
        ),
        "row_stats": ("row_stats", {"logits": rows}),
        "row_stats, filters": ("row_stats", {"logits": rows} | warm),
        "sample": ("sample", {"logits": rows} | randomness),
        "sample, no replacement": ("sample", {"logits": rows, "k": 3, "replacement": False} | warm | randomness),
        "verify_tree, kseq": ("verify_tree", branches | {"tree": tuple(TREE), "method": "kseq"}),
        "verify_tree, recursive, filters": (
            "verify_tree",
            branches | warm | {"tree": tuple(TREE), "method": "recursive"},
        ),
        "verify_tree, traversal": ("verify_tree", branches | {"tree": TREE[:2], "method": "traversal"}),
        "verify_tree, by rule": ("verify_tree", branches | mixed | {"tree": TREE[:2], "method": "traversal"}),
        "verify_chain": ("verify_chain", step | randomness),
        "verify_chain, by rule": ("verify_chain", step | mixed | randomness),
        "verify_chain, filters": ("verify_chain", step | warm | randomness),
        "verify_chain, greedy": ("verify_chain", step | {"temperature": torch.zeros(B)} | randomness),
    }


CALLS = list(one(0))


def test_every_op_has_a_call():
    assert {op for op, _ in one(0).values()} == set(dispatch.ops())


@pytest.fixture(params=GPU)
def gpu(request):
    if request.param not in backends.NAMES:
        pytest.skip(f"{request.param} is not among SPECDEC_TEST_BACKENDS")
    if reason := backends.why_not(request.param):
        pytest.skip(f"{request.param}: {reason}")
    return request.param


def sets(name):
    op = one(0)[name][0]
    return op, [one(seed)[name][1] for seed in (0, 1, 2, 0)]


def same(got, want):
    return all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("name", CALLS)
def test_replay_follows_its_inputs(gpu, name):
    op, inputs = sets(name)
    left, want = backends.there(gpu, graphs.replayed, op, inputs)
    assert not same(want[0], want[1])
    for got, plain in zip(left, want):
        assert same(got, plain)


@pytest.mark.parametrize("name", CALLS)
def test_streams_do_not_disturb_each_other(gpu, name):
    op, inputs = sets(name)
    got, want = backends.there(gpu, graphs.on_streams, op, inputs)
    for a, b in zip(got, want):
        assert same(a, b)


@pytest.mark.parametrize("name", CALLS)
def test_never_waits_for_the_device(gpu, name):
    op, inputs = one(0)[name]
    backends.there(gpu, graphs.without_waiting, op, inputs)


@pytest.mark.parametrize("name", CALLS)
def test_second_device(gpu, name):
    if backends.there(gpu, graphs.devices) < 2:
        pytest.skip(f"{gpu}: one GPU here")
    op, inputs = one(0)[name]
    got, want, places, current = backends.there(gpu, graphs.on_second_device, op, inputs)
    assert set(places) == {"cuda:1"} and current == 0
    assert same(got, want)


@pytest.mark.parametrize("name", CALLS)
def test_the_checks_run_and_can_fail(name, monkeypatch):
    rehearsal = pytest.importorskip("bench.rehearsal", reason="needs the source tree's bench")
    op, inputs = sets(name)
    with rehearsal.no_gpu():
        left, want = graphs.replayed(op, inputs)
        assert all(map(same, left, want)) and not same(want[0], want[1])
        assert all(map(same, *graphs.on_streams(op, inputs, times=2)))
        graphs.without_waiting(op, inputs[0])

        kept = getattr(graphs.sk, op)(**inputs[0])  # an op whose kernels are not in the graph
        monkeypatch.setattr(graphs.sk, op, lambda **_: kept)
        left, _ = graphs.replayed(op, inputs)
        assert not all(map(same, left, want))
