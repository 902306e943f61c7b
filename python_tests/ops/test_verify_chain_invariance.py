# SPDX-License-Identifier: Apache-2.0
"""A request's tokens depend, bit for bit, only on its own logits, parameters, seed and offset, not on its batch."""

import os

import pytest
import torch
from support import backends, cases, checks, flat, tiers
from support.surface import tensors

import specdec_kernels as sk
from specdec_kernels.registry import SAMPLING


def seeded(B=64, G=4, V=3001, **more):
    """Return a call whose rows have three chunks, so that a sum in an order that depends on the number of threads would
    show."""
    args = cases.chain(41, B, G, V, filtered=True, dtype=torch.bfloat16, kinds=["near", "identical"], **more)
    args.pop("uniforms")
    return args | {"seed": torch.arange(B) * 7919 + 5, "offset": torch.arange(B) % 3 + 2**33}


def of(args, rows):
    return {name: x[rows] if name in cases.PER_REQUEST else x for name, x in args.items()}


def assert_equal(got, want):
    for a, b in zip(got[:4], want[:4]):
        assert torch.equal(a.nan_to_num(9.0), b.nan_to_num(9.0))


def test_alone_and_in_any_order(backend):
    B = backends.scale(64, backend)
    args = seeded(B)
    verify = backends.call("verify_chain", backend)
    whole = verify(**args)
    assert 0.1 < whole.num_accepted.double().mean() < 3.9
    for order in (torch.randperm(B, generator=torch.Generator().manual_seed(0)), torch.arange(B - 1, -1, -1)):
        assert_equal(verify(**of(args, order)), [x[order] for x in whole[:4]])
    for b in range(0, B, 5):
        assert_equal(verify(**of(args, slice(b, b + 1))), [x[b : b + 1] for x in whole[:4]])


# The grid depends on the total number of chunks: below 2^14, below 2^16, and more.
@pytest.mark.parametrize("copies", [2, 60, pytest.param(230, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("filtered", [False, True])
def test_among_many(op_backend, copies, filtered):
    """A request gives the same bits alone and many times in one call, although the grid depends on the batch size."""
    if op_backend == "triton-interpret":
        copies = min(copies, 20)
    verify = backends.call("verify_chain", op_backend)
    V = 100_001 if op_backend != "triton-interpret" else 5001
    args = seeded(B=1, G=2, V=V)
    if not filtered:
        args = {name: x for name, x in args.items() if not name.endswith(tuple(SAMPLING)[1:])}
    args["temperature"] = torch.ones(1)
    many = {
        name: x.expand(copies, *x.shape[1:]) if x.dim() > 1 or name in ("seed", "offset") else x
        for name, x in args.items()
    }
    assert_equal(verify(**many), [x.expand(copies, *x.shape[1:]) for x in verify(**args)[:4]])
    rows, params = (
        args["target_logits"][0, :1],
        {"temperature": 0.8} | ({"top_k": 50, "top_p": 0.9} if filtered else {}),
    )
    many = rows.expand(3 * copies, -1)
    want = backends.run("row_stats", op_backend, rows, **params)
    assert torch.equal(backends.run("row_stats", op_backend, many, **params), want.expand(3 * copies, -1))
    u = torch.full((1, 2), 0.7, dtype=torch.float64)
    want = backends.run("sample", op_backend, rows, k=2, uniforms=u, **params)
    got = backends.run("sample", op_backend, many, k=2, uniforms=u.expand(3 * copies, -1), **params)
    for a, b in zip(tensors(got), tensors(want)):
        assert torch.equal(a, b.expand_as(a))


def test_ragged_and_padded(backend):
    """Ragged requests, also in a batch with room for more drafts, give the same results as dense ones."""
    B = backends.scale(64, backend)
    args = seeded(B, V=1500)
    verify = backends.call("verify_chain", backend)
    whole = verify(**args)
    behind = {
        "target_logits": args["target_logits"].flatten(0, 1),
        "draft_logits": args["draft_logits"].flatten(0, 1),
        "draft_tokens": args["draft_tokens"].flatten(),
        "cu_draft": torch.arange(B + 1) * 4,
        "max_draft": 4,
    }
    assert_equal(verify(**args | behind), whole)
    wide = verify(**args | behind | {"max_draft": 9})
    assert torch.equal(wide.tokens[:, :5], whole.tokens) and (wide.tokens[:, 5:] == -1).all()


def test_layout_of_the_rows(backend):
    """Results do not depend on row strides, the alignment of the first row, or the order of dimensions. Requests may
    share rows."""
    args = seeded(B=16) if backend != "triton-interpret" else seeded(B=6, G=2)
    verify = backends.call("verify_chain", backend)
    want = verify(**args)
    for pad, shift in ((1, 0), (3, 0), (64, 0), (0, 1), (8, 4), (5, 7)):
        rows = {name: cases.strided(args[name], pad, shift) for name in ("target_logits", "draft_logits")}
        assert_equal(verify(**args | rows), want)
    swapped = {
        name: args[name].transpose(0, 1).contiguous().transpose(0, 1) for name in ("target_logits", "draft_logits")
    }
    assert_equal(verify(**args | swapped), want)
    same, B = args["target_logits"][:1], len(args["target_logits"])
    assert_equal(
        verify(**args | {"target_logits": same.expand(B, -1, -1)}),
        verify(**args | {"target_logits": same.repeat(B, 1, 1)}),
    )


def arguments_after_the_call(**args):
    flat.call(sk.verify_chain, **args)
    return args


def test_arguments_are_left_alone(op_backend):
    args = seeded(B=8)
    before = {name: x.clone() for name, x in args.items()}
    for name, x in backends.there(op_backend, arguments_after_the_call, **args).items():
        assert torch.equal(x, before[name]), name


def in_every_order(calls):
    """Run [(op, arguments)] under each order of a block's threads and of the blocks. Return a list of results for each
    order."""
    from tools.cuda_on_cpu import control
    from tools.cuda_on_cpu.build import load

    module = load(os.environ["SPECDEC_CUDA_ON_CPU"])
    orders = [(threads, ("ascending", 1)) for threads in control.SCHEDULES]
    orders += [(("random", 3 + i), blocks) for i, blocks in enumerate(control.BLOCK_ORDERS)]
    results = []
    for threads, blocks in orders:
        with control.order(module, threads, blocks):
            results.append([flat.call(getattr(sk, op), **args) for op, args in calls])
    return results


@pytest.mark.parametrize("filtered", [False, True])
def test_order_of_threads_and_blocks(filtered):
    """Results have the same bits in eight orders of a block's threads and of a launch's blocks."""
    where = next((name for name in backends.NAMES if name.startswith("cuda-on-cpu")), None)
    if where is None:
        pytest.skip("cuda-on-cpu was not asked for")
    args = seeded(B=8, G=2) | {"seed": torch.arange(8) + 3}
    params = {name: x for name, x in cases.parameters(42, 8).items() if filtered or name == "temperature"}
    if not filtered:
        args = {name: x for name, x in args.items() if not name.endswith(tuple(SAMPLING)[1:])}
    z, draft = args["target_logits"][:, 0], args["draft_logits"][:, 0]
    calls = [
        ("verify_chain", args),
        ("row_stats", {"logits": z} | params),
        (
            "sample",
            {"logits": z, "k": 3, "replacement": False, "seed": args["seed"], "offset": args["offset"]} | params,
        ),
        ("residual", {"p": z.softmax(-1), "q": draft.softmax(-1)}),
        ("uniforms", {"seed": args["seed"], "offset": args["offset"], "n": 9, "domain": 0}),
        ("accept", {"p": z.softmax(-1), "q": draft.softmax(-1), "u": torch.full(z.shape, 0.7, dtype=torch.float64)}),
    ]
    first, *others = backends.there(where, in_every_order, calls)
    assert len(others) == 7
    for other in others:
        for got, want in zip(other, first):
            for a, b in zip(tensors(got), tensors(want), strict=True):
                assert torch.equal(a.nan_to_num(9.0), b.nan_to_num(9.0))


FEW = 64 if tiers.TIER == "all" else 24


def of_this_process(threads=1):
    """Return the instruction set of this process, and the call's result."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert torch.get_num_threads() == threads
        return sk.backends.cpu_isa(), flat.call(sk.verify_chain, **seeded(B=FEW))[:4]
    finally:
        torch.set_num_threads(before)


def test_number_of_threads():
    (_, one), (_, two) = of_this_process(threads=1), of_this_process(threads=2)
    assert_equal(two, one)


@pytest.mark.parametrize("isa", ["base", "avx2", "avx512"])
@pytest.mark.slow
def test_every_instruction_set(isa):
    """Instruction sets sum in different orders, so tokens may differ from the reference's, but only inside its error
    band."""
    if isa not in backends.ISAS:
        pytest.skip(f"this CPU has no {isa}")
    name, (tokens, *_) = backends.there(f"cpu-{isa}", of_this_process)
    assert name == isa
    ref = checks.reference_verify(**seeded(B=FEW))
    differs = (tokens != ref.tokens).any(-1)
    assert not (differs & (ref.margin > 1)).any() and differs.sum() <= 1
