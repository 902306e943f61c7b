# SPDX-License-Identifier: Apache-2.0
"""What goes wrong on one rank ends in an error on every rank, within the process group's timeout."""

import os
from time import perf_counter

import pytest
import torch
from support.ranks import Ranks

SECONDS = 10.0


@pytest.fixture(scope="module")
def ranks():
    group = Ranks(3, SECONDS)
    yield group
    group.stop()


@pytest.fixture
def doomed():
    group = Ranks(3, SECONDS)
    yield group
    group.stop()


def step(rank, change=None, at=1, gone_after=None):
    """One verify_chain of a vocabulary over three ranks; rank `at` gives what change(arguments) makes of its own, or is
    gone after so many rounds."""
    from specdec_kernels import distributed
    from specdec_kernels.distributed import ops

    generator = torch.Generator().manual_seed(1)
    shards = distributed.Shards(4000)
    arguments = {
        "target_logits": torch.randn(2, 4, 4000, generator=generator)[..., shards.here],
        "draft_tokens": torch.randint(0, 4000, (2, 3), generator=generator),
        "temperature": torch.tensor([1.0, 0.5]),
        "seed": torch.arange(2),
        "offset": torch.zeros(2, dtype=torch.int64),
    }
    op = "verify_chain"
    if rank == at and change is not None:
        op, arguments = change(arguments)
    if rank == at and gone_after is not None:
        gather, rounds = ops.gather, iter(range(gone_after))
        ops.gather = lambda *given: gather(*given) if next(rounds, None) is not None else os._exit(1)
    return getattr(distributed, op)(**arguments, shards=shards)


def changed(**what):
    return _Changed(what)


class _Changed:
    """Pickles, as a lambda does not."""

    def __init__(self, what):
        self.what = what

    def __call__(self, arguments):
        return "verify_chain", arguments | self.what


def another_op(arguments):
    return "row_stats", {"logits": arguments["target_logits"][:, 0], "temperature": 1.0}


def fewer_requests(arguments):
    return "verify_chain", {name: x[:1] for name, x in arguments.items()}


def one_entry_less(arguments):
    return "verify_chain", arguments | {"target_logits": arguments["target_logits"][..., 1:]}


def said(ranks, *args):
    ranks.call(step)  # it may have to start first
    began = perf_counter()
    errors = [str(x) if isinstance(x, Exception) else x for x in ranks.call(step, *args)]
    assert perf_counter() - began < 3 * SECONDS  # the ring's neighbours give up one after the other
    return errors


@pytest.mark.parametrize(
    "change, message",
    [
        (changed(temperature=torch.tensor([1.0, 0.6])), "verify_chain: temperature must be the same on all ranks"),
        (changed(top_p=0.9), "verify_chain: top_p must be the same on all ranks"),
        (changed(seed=torch.tensor([0, 2])), "verify_chain: seed must be the same on all ranks"),
        (changed(method="block"), "verify_chain: method must be the same on all ranks"),
        (fewer_requests, "verify_chain: target_logits must be the same on all ranks"),
        (another_op, "all ranks must call the same op, got "),
    ],
)
def test_another_call(ranks, change, message):
    for rank, error in enumerate(said(ranks, change)):
        assert message in str(error), (rank, error)
        assert "on rank 1" in error or (rank == 1 and "on rank 0" in error)
    assert [len(x.tokens) for x in ranks.call(step)] == [2, 2, 2]  # and the group serves on


def test_rows_that_one_rank_cannot_give(ranks):
    mine, other = "must have this rank's 1333 entries of each row, got [2, 4, 1332]", "got an error on rank 1"
    for rank, error in enumerate(said(ranks, one_entry_less)):
        assert (mine if rank == 1 else other) in str(error), (rank, error)
    assert [len(x.tokens) for x in ranks.call(step)] == [2, 2, 2]


def test_what_every_rank_does_wrong(ranks):
    for error in ranks.call(wrong_alike):
        assert "verify_chain: temperature must be finite and >= 0, got -1 at index 1" in str(error)


def wrong_alike(rank):
    return step(rank, changed(temperature=torch.tensor([1.0, -1.0])), rank)


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_a_rank_is_killed(doomed, rounds):
    found = said(doomed, None, 1, rounds)
    assert found[1] == "gone"
    for rank in (0, 2):
        assert "verify_chain: all ranks must answer within the process group's timeout" in str(found[rank]), found[rank]
