# SPDX-License-Identifier: Apache-2.0
"""Padded buffers: the first n requests or rows get, bit for bit, the results of a call with only these, whatever the
buffers hold after them. Later results are marked absent. The calls are the examples."""

import functools

import pytest
import torch
from support import backends, flat, rule_cases, tiers
from support.padded_mutants import SOURCES
from support.surface import plain, same, tensors
from support.worker import Worker
from torch.utils._pytree import tree_map

import specdec_kernels as sk
from specdec_kernels import example_calls
from tools.cuda_on_cpu.build import CSRC
from tools.cuda_on_cpu.mutants import mutate

NUMBERS = {op: "num_rows" for op in ("row_stats", "sample", "residual", "top_logprobs", "row_topw", "support")}
NUMBERS |= {op: "num_requests" for op in ("verify_chain", "verify_tree")}
# the argument with one entry per row or request; "rows" for other ops
FIRST = {"residual": "p", "verify_chain": "draft_tokens", "verify_tree": "target"}
ABSENT = {"tokens": -1, "path": -1, "ids": -1}  # results of absent rows; 0 for other results
STALE = {  # (float, function of an integer type's limits): stale values that are invalid everywhere
    "nan": (float("nan"), lambda limits: -7),
    "high": (float("inf"), lambda limits: limits.max),
    "low": (-1e4, lambda limits: limits.min),
}


def calls_of(op, backend, **inputs):
    some = example_calls.few if backend in rule_cases.SLOW or "cuda-on-cpu" in backend else example_calls.calls
    found = [call for call in backends.served(backend, op, some(op, **inputs)) if NUMBERS[op] not in call.arguments]
    return found[1::3] if backend == "triton-interpret" and tiers.TIER != "all" else found


def size_of(op, args):
    if "cu_draft" in args:
        return len(args["cu_draft"]) - 1
    x = args[FIRST.get(op, "rows")]
    return len(x if isinstance(x, torch.Tensor) else x.logits if x.row is None or op != "support" else x.row)


def rows_of(args, name, x, n):
    """Return how many rows of a ragged argument belong to the first n requests. Some arguments have one row more for
    each request."""
    ends = args["cu_draft"].tolist()
    if name == "cu_draft":
        return n + 1
    if len(x) == len(ends) - 1:
        return n
    extra = len(x) > ends[-1]
    return ends[n] + extra * n


def cut(op, args, n, replace):
    """Return the arguments with replace(x, count) for every tensor with entries per request or row. count: how many
    belong to the first n."""
    B = size_of(op, args)

    def changed(name, x):
        side, _, field = name.partition(".")
        store = op != "verify_tree" and field in ("logits", "stats") and f"{side}.row" in fields
        if store or not isinstance(x, torch.Tensor):
            return x
        if "cu_draft" in args:
            return replace(x, rows_of(args, name, x, n)) if len(x) > 1 else x
        return replace(x, n) if len(x) == B else x

    fields = example_calls.flat(args)
    return example_calls.folded({name: tree_map(functools.partial(changed, name), x) for name, x in fields.items()})


def stale(kind):
    real, whole = STALE[kind]

    def replace(x, n):
        value = real if x.is_floating_point() else whole(torch.iinfo(x.dtype))
        return torch.cat([x[:n], torch.full_like(x[n:], value)])

    return replace


def assert_absent(out, n):
    for name, x in zip(getattr(out, "_fields", ("stats",) * 2), tensors(out)):
        assert (x[n:] == ABSENT.get(name, 0)).all(), f"{name} of what is absent: {x[n:].tolist()}"


def assert_padded(op, run, args, kind, number, n):
    """Check a padded call: entries after the first n do not change the results, and their own results are absent."""
    run(**args)  # leaves other values in memory that the next results may reuse
    out = run(**cut(op, args, n, stale(kind)), **{NUMBERS[op]: number})
    alone = run(**cut(op, args, n, lambda x, count: x[:count]))
    assert same([x[:n] for x in tensors(out)], tensors(alone)), (kind, n)
    assert_absent(out, n)


@pytest.mark.parametrize("op", NUMBERS)
@pytest.mark.parametrize("kind", STALE)
def test_what_is_absent_does_not_show(op_backend, op, kind):
    run = backends.call(op, op_backend)
    for i, call in enumerate(calls_of(op, op_backend)):
        B = size_of(op, call.arguments)
        n = (i + list(STALE).index(kind)) % B
        number = torch.tensor([n], dtype=(torch.int64, torch.int32)[i % 2])
        assert_padded(op, run, call.arguments, kind, number, n)


@pytest.mark.parametrize("op", NUMBERS)
@pytest.mark.slow_in_triton
def test_numbers(op_backend, op):
    """The count of rows or requests may be 0 or all. Invalid counts are clamped."""
    run = backends.call(op, op_backend)
    args = calls_of(op, op_backend)[1].arguments
    B = size_of(op, args)
    for said, n in ((0, 0), (-3, 0), (-(2**31), 0), (1, 1), (B, B), (B + 1, B), (2**31 - 1, B)):
        for dtype in (torch.int32, torch.int64):
            assert_padded(op, run, args, "nan", torch.tensor([said], dtype=dtype), n)
    assert_padded(op, run, args, "nan", torch.tensor([-(2**62)]), 0)
    assert_padded(op, run, args, "nan", torch.tensor([2**62]), B)


@pytest.mark.parametrize("op", NUMBERS)
@pytest.mark.slow_in_triton
def test_rows_of_many_blocks(op_backend, op):
    """On a GPU, several blocks share a row and count how many have finished. Blocks of absent rows must not be
    counted."""
    run = backends.call(op, op_backend)
    for call in calls_of(op, "cuda-on-cpu", V=9001, dtype=torch.bfloat16)[:9]:
        assert_padded(op, run, call.arguments, "nan", torch.tensor([1]), 1)


def test_blocks_by_rules_of_their_own(op_backend):
    calls = {call.name: call.arguments for call in example_calls.calls("verify_chain")}
    args = calls["rules from 4, block"] | {"draft": calls["a bonus row of the draft's"]["draft"]}
    assert_padded("verify_chain", backends.call("verify_chain", op_backend), args, "nan", torch.tensor([3]), 3)


def test_room_behind_the_drafts(op_backend):
    """In a padded ragged call D is the capacity, not the number of drafts."""
    call = next(call for call in example_calls.calls("verify_chain") if call.name == "ragged")
    run, args = backends.call("verify_chain", op_backend), call.arguments
    B, D = size_of("verify_chain", args), len(args["draft_tokens"])
    fuller = dict(args)
    for name in ("target", "draft_tokens", "draft"):
        fuller[name] = torch.cat([args[name], torch.full_like(args[name][:2], -7)])
    assert same(run(**fuller, num_requests=torch.tensor([B])), run(**args))
    if op_backend != "cpu":
        return
    with pytest.raises(ValueError, match=f"verify_chain: cu_draft must end at D={D + 2}, got {D}"):
        run(**fuller)
    longer = args | {"cu_draft": args["cu_draft"] + 1 - (args["cu_draft"] == 0).long(), "max_draft": 9}
    with pytest.raises(ValueError, match=f"verify_chain: cu_draft must end at most at D={D}, got {D + 1}"):
        run(**longer, num_requests=torch.tensor([B]))


@pytest.mark.parametrize("op", ["row_stats", "sample", "verify_chain", "verify_tree"])
def test_values_of_those_that_are_there_are_checked(op):
    side = "target" if op.startswith("verify") else "rows"
    name = f"{side}.temperature"
    calls = [example_calls.flat(call.arguments) for call in example_calls.calls(op)]
    call = next(call for call in calls if isinstance(call.get(name), torch.Tensor))
    B = size_of(op, example_calls.folded(call))
    wrong = {name: torch.ones(B).index_fill(0, torch.tensor([B - 1]), -1.0)}
    run = functools.partial(getattr(sk, op), **example_calls.folded(call | wrong))
    run(**{NUMBERS[op]: torch.tensor([B - 1])})
    with pytest.raises(ValueError, match=f"{op}: {name} must be .* got -1 at index {B - 1}"):
        run(**{NUMBERS[op]: torch.tensor([B])})


def test_an_empty_draft_is_no_absent_request(op_backend):
    z = torch.zeros(3, 1, 5).index_fill_(2, torch.tensor([3]), 9.0)
    out = backends.run("verify_chain", op_backend, z, torch.zeros(3, 0, dtype=torch.int64), temperature=0.0,
                       num_requests=torch.tensor([2]))  # fmt: skip
    assert out.tokens.tolist() == [[3], [3], [-1]] and out.num_accepted.tolist() == [0, 0, 0]


# ---- mutants ------------------------------------------------------------------------------------------------------


def left_unwritten(out, n):
    return out._replace(status=torch.cat([out.status[:n], out.status[n:] + 1]))


def parameter_read(out, n):
    return out._replace(logprobs=torch.cat([out.logprobs[:n], plain(out.logprobs[n:]) + 0.5]))


def mate_shows(out, n):
    return out._replace(tokens=torch.cat([out.tokens[:n] + (out.tokens[:n] > 0), out.tokens[n:]]))


@pytest.mark.parametrize("wrong", [left_unwritten, parameter_read, mate_shows])
def test_a_wrong_answer_is_caught(wrong):
    def run(num_requests=None, **args):
        out = flat.call(sk.verify_chain, **args, num_requests=num_requests)
        return out if num_requests is None else wrong(out, int(num_requests))

    args = calls_of("verify_chain", "cpu")[1].arguments
    with pytest.raises(AssertionError):
        assert_padded("verify_chain", run, args, "nan", torch.tensor([2]), 2)


def with_kernels_of(csrc, op, **args):
    from tools.cuda_on_cpu.build import load

    load("fast", csrc, (op,))
    return getattr(sk, op)(**args)


@pytest.mark.thorough
@pytest.mark.skipif("cuda-on-cpu" not in backends.NAMES, reason="cuda-on-cpu was not asked for")
@pytest.mark.parametrize("name", SOURCES)
def test_a_wrong_line_is_caught(name):
    *change, op, form = SOURCES[name]
    worker = Worker("mutant", {"OMP_NUM_THREADS": "1"})
    run = functools.partial(worker.call, with_kernels_of, mutate(CSRC, *change), op)
    args = next(call.arguments for call in example_calls.calls(op) if call.name == form)
    # a mutant that reads absent rows may read unmapped memory, which ends its process
    with pytest.raises((AssertionError, ChildProcessError)):
        assert_padded(op, run, args, "nan", torch.tensor([1]), 1)
    worker.process.terminate()
