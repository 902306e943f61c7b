# SPDX-License-Identifier: Apache-2.0
"""A rank gets the arguments of its requests as the table of arguments requires, even if unrelated sizes are equal.
These tests need no ranks."""

from types import SimpleNamespace

import pytest
import torch
from support.sharded_cases import results
from support.surface import plain, same

import specdec_kernels as sk
from specdec_kernels import arguments, example_calls
from specdec_kernels.arguments import Argument
from specdec_kernels.distributed import ops
from specdec_kernels.distributed.agreement import OPS
from specdec_kernels.distributed.whole_rows import logits_of, share_of

V = 77


@pytest.fixture
def rows_of_table(monkeypatch):
    """Return a function that adds rows to the table."""

    def add(op, *more):
        monkeypatch.setitem(arguments.TABLE, op, (*arguments.TABLE[op], *more))
        arguments.places.cache_clear()

    yield add
    monkeypatch.undo()
    arguments.places.cache_clear()


def requests(op, call):
    return len(logits_of(call[arguments.sides(op)[0]]))


def is_whole(op, call):
    """Return whether requests cannot be separated by position."""
    flat = example_calls.flat(call)
    return any(flat.get(place) is not None for place, x in arguments.places(op).items() if x.per == "whole")


@pytest.mark.parametrize("op", OPS)
def test_a_share_gives_what_the_whole_call_does(op):
    made = 0
    for name, call in example_calls.calls(op, V=V):
        if is_whole(op, call):
            continue
        n = requests(op, call)
        want = [plain(x) for x in results(getattr(sk, op)(**call))]
        for begin, end in ((0, n - 1), (n - 1, n)):
            got = [plain(x) for x in results(getattr(sk, op)(**share_of(op, call, n, begin, end)))]
            assert same(got, [x[begin:end] for x in want]), (name, begin, end)
            made += 1
    assert made


def test_what_is_shared_is_not_cut_whatever_its_size(rows_of_table):
    """Three requests, three nodes, and shared tensors of three entries."""
    rows_of_table(
        "verify_tree",
        Argument("weights", "float32", "3", optional=True, public="weights"),
        Argument("bias", "float32", "B | 1", "request", True, "bias"),
        Argument("pair", "float32", "B, 2 | 3", "request", True, "pair"),
    )
    three, one = torch.arange(3), torch.tensor([7])
    call = {
        "tree": (three - 1, three, None, torch.zeros(3, 2, 1, dtype=torch.int64)),
        "target": sk.Rows(torch.zeros(3, 3, V), temperature=three.float()),
        "links": (torch.zeros(3, 3), torch.zeros(3, 3)),
        "rule": one,
        "num_requests": torch.tensor([2]),
        "uniforms": torch.zeros(3, 4),
        "unknown": three,
        "weights": three,
        "bias": three,
        "pair": three,
    }
    got = share_of("verify_tree", call, 3, 1, 3)
    shapes = {name: [None if x is None else list(x.shape) for x in parts] for name, parts in got.items()
              if isinstance(parts, tuple) and name != "target"}  # fmt: skip
    assert shapes == {"tree": [[3], [3], None, [2, 2, 1]], "links": [[2, 3], [2, 3]]}
    assert list(got["target"].logits.shape) == [2, 3, V] and got["target"].temperature.tolist() == [1, 2]
    assert got["rule"].tolist() == [7] and got["num_requests"].tolist() == [1] and len(got["uniforms"]) == 2
    assert [len(got[name]) for name in ("unknown", "weights", "bias", "pair")] == [3, 3, 2, 3]
    alone = share_of("verify_tree", call | {"rule": one}, 1, 0, 1)  # a single request: one entry for all
    assert alone["rule"].tolist() == [7]


def test_a_plain_tensor_is_cut_as_its_rows_are():
    z = torch.zeros(3, 2, V)
    call = {"target": z, "draft_tokens": torch.zeros(3, 1, dtype=torch.int64), "draft": sk.Rows(z[:, :1])}
    got = share_of("verify_chain", call, 3, 0, 2)
    assert [len(logits_of(x)) for x in got.values()] == [2, 2, 2]


@pytest.mark.parametrize("rank", range(3))
def test_rows_of_a_rank_lie_in_its_memory(rank):
    """The op gets a view in the shape of whole rows. It lies in this rank's own memory, even if the rank has no
    chunk."""
    whole = torch.randn(4, 3, 2100)
    mine, rows = ops._rows("verify_chain", whole, None, SimpleNamespace(rank=rank), [0, 1, 3, 3])
    assert rows.shape == whole.shape
    assert mine.size(-1) == (1024, 1076, 1)[rank]
    assert rows.untyped_storage().data_ptr() == mine.untyped_storage().data_ptr()
    assert rows[..., -1].data_ptr() == mine.data_ptr()
