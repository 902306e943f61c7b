# SPDX-License-Identifier: Apache-2.0
"""A failure of one rank ends in an error on every rank that still runs, within three times the process group's
timeout."""

import os
from time import perf_counter

import pytest
import torch
from support.ranks import Ranks

import specdec_kernels
from specdec_kernels.distributed.shards import EXCHANGES
from specdec_kernels.penalties import Penalties
from specdec_kernels.rows import Rows

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


@pytest.fixture(params=EXCHANGES)
def exchange(request):
    return request.param


def step(rank, exchange, change=None, at=1, gone_after=None):
    """Run verify_chain over three ranks. Rank `at` uses change(arguments), or exits after `gone_after` collectives."""
    from specdec_kernels import distributed

    generator = torch.Generator().manual_seed(1)
    shards = distributed.Shards(4000, exchange=exchange)
    arguments = {
        "target": Rows(
            torch.randn(3, 4, 4000, generator=generator)[..., shards.here].contiguous(),
            temperature=torch.tensor([1.0, 0.5, 0.7]),
        ),
        "draft_tokens": torch.randint(0, 4000, (3, 3), generator=generator),
        "seed": torch.arange(3),
        "offset": torch.zeros(3, dtype=torch.int64),
    }
    op = "verify_chain"
    if rank == at and change is not None:
        op, arguments = change(arguments)
    if rank == at and gone_after is not None:
        leave_after(gone_after)
    return getattr(distributed, op)(**arguments, shards=shards)


def leave_after(rounds):
    """Exit this process after this many collectives."""
    from specdec_kernels.distributed import collectives

    left = iter(range(rounds))

    def leaving(collective):
        return lambda *args, **kwargs: os._exit(1) if next(left, None) is None else collective(*args, **kwargs)

    collectives._all_gather = leaving(collectives._all_gather)
    torch.distributed.all_to_all_single = leaving(torch.distributed.all_to_all_single)


def changed(**what):
    return _Changed(what)


def lists(*ids, **fields):
    ids = torch.tensor(ids, dtype=torch.int32)
    return Penalties(**{"presence": 1.0, "ids": ids, "counts": torch.zeros_like(ids)} | fields)


class _Changed:
    """Changes the target's rows or other arguments. Unlike a lambda it can be pickled."""

    def __init__(self, what):
        self.what = what

    def __call__(self, arguments):
        of_target = {name: x for name, x in self.what.items() if name in Rows._fields}
        others = {name: x for name, x in self.what.items() if name not in of_target}
        return "verify_chain", arguments | others | {"target": arguments["target"]._replace(**of_target)}


def another_op(arguments):
    return "row_stats", {"rows": Rows(arguments["target"].logits[:, 0], temperature=1.0)}


def fewer_requests(arguments):
    z, temperature, *_ = arguments["target"]
    others = {name: x[:1] for name, x in arguments.items() if name != "target"}
    return "verify_chain", {"target": Rows(z[:1], temperature[:1]), **others}


def one_entry_less(arguments):
    return changed(logits=arguments["target"].logits[..., 1:])(arguments)


def said(ranks, exchange, *args):
    ranks.call(step, exchange)  # the ranks' processes may have to start first
    began = perf_counter()
    errors = [str(x) if isinstance(x, Exception) else x for x in ranks.call(step, exchange, *args)]
    assert perf_counter() - began < 3 * SECONDS  # the ring's neighbours give up one after the other
    return errors


@pytest.mark.parametrize(
    "change, message",
    [
        (
            changed(temperature=torch.tensor([1.0, 0.6, 0.7])),
            "verify_chain: target.temperature must be the same on all ranks",
        ),
        (changed(top_p=0.9), "verify_chain: target.top_p must be the same on all ranks"),
        (
            changed(penalties=lists([0, 5], [1, -1], [2, 3])),
            "verify_chain: target.penalties must be the same on all ranks",
        ),
        (changed(seed=torch.tensor([0, 2, 2])), "verify_chain: seed must be the same on all ranks"),
        (changed(method="block"), "verify_chain: method must be the same on all ranks"),
        (fewer_requests, "verify_chain: target.logits must be the same on all ranks"),
        (another_op, "all ranks must call the same op, got "),
    ],
)
def test_another_call(ranks, exchange, change, message):
    for rank, error in enumerate(said(ranks, exchange, change)):
        assert message in str(error), (rank, error)
        assert "on rank 1" in error or (rank == 1 and "on rank 0" in error)
    serves_on(ranks, exchange)


def serves_on(ranks, exchange):
    assert [len(x.tokens) for x in ranks.call(step, exchange)] == [3, 3, 3]


def test_rows_that_one_rank_cannot_give(ranks, exchange):
    wanted, other = "target.logits must have this rank's 1333 entries of each row", "got an error on rank 1"
    mine = f"verify_chain: {wanted}, got [3, 4, 1332]"
    for rank, error in enumerate(said(ranks, exchange, one_entry_less)):
        assert (mine if rank == 1 else other) in str(error), (rank, error)
    serves_on(ranks, exchange)


def without_logits(arguments):
    return "verify_chain", arguments | {"target": Rows(3)}


def without_rows(arguments):
    return "verify_chain", arguments | {"target": "x"}


def test_rows_that_are_none(ranks, exchange):
    for change, wanted in (
        (without_logits, "verify_chain: target.logits must be a torch.Tensor, got int"),
        (without_rows, "verify_chain: target must be a torch.Tensor or Rows, got str"),
    ):
        assert wanted in str(said(ranks, exchange, change)[1])
    serves_on(ranks, exchange)


FINE = [1, 3999], [2, -1]


@pytest.mark.parametrize(
    "what, message",
    [
        ({"temperature": torch.tensor([1.0, -1.0, 1.0])}, "temperature must be finite and >= 0, got -1 at index 1"),
        (
            {"penalties": lists(*FINE, [3000, 7])},
            "penalties.ids must ascend and end with -1, got 3000 then 7 in list 2",
        ),
        ({"penalties": lists(*FINE, row=torch.tensor([0, 2, 1]))}, "penalties.row must be in [0, 2), got 2 at index 1"),
        (
            {"penalties": lists(*FINE, [-1, -1], presence=torch.tensor([0.0, torch.nan, 0.0]))},
            "penalties.presence must be finite, got nan at index 1",
        ),
        ({"penalties": lists(*FINE)}, "penalties.counts must be of 3 histories, or penalties.row be given, got 2"),
    ],
)
def test_what_every_rank_does_wrong(ranks, exchange, what, message):
    """All ranks pass the same wrong argument. The call fails on all of them, even if only one rank verifies that
    request, and the error names the index in the whole batch."""
    for rank, error in enumerate(ranks.call(wrong_alike, exchange, what)):
        assert f"verify_chain: target.{message}" in str(error), (rank, error)
    serves_on(ranks, exchange)


def test_shapes_that_every_rank_has_wrong(ranks, exchange):
    """Two temperatures for three requests are refused. If each rank took its part of them, one value would fit a share
    of one request."""
    for error in ranks.call(wrong_alike, exchange, {"temperature": torch.tensor([1.0, 1.0])}):
        assert "verify_chain: target.temperature must have shape [3] or [1], got [2]" in str(error)
    serves_on(ranks, exchange)


def wrong_alike(rank, exchange, what):
    return step(rank, exchange, changed(**what), rank)


def out_over_rows(arguments):
    return "verify_chain", arguments | {"out": room(arguments["target"].logits.view(-1)[:12].view(3, 4))}


def out_of_one_column(arguments):
    return "verify_chain", arguments | {"out": room(torch.empty(3, 1))}


def no_out(arguments):
    return "verify_chain", arguments | {"out": torch.empty(3)}


def room(logprobs):
    results = specdec_kernels.verify_chain(
        Rows(torch.zeros(3, 4, 1), temperature=0), torch.zeros(3, 3, dtype=torch.int64)
    )
    return results._replace(logprobs=logprobs)


@pytest.mark.parametrize(
    "change, message",
    [
        (out_over_rows, "verify_chain: out.logprobs must have memory of its own, got some of another argument's"),
        (out_of_one_column, "verify_chain: out.logprobs must have shape [B=3, G+1=4], got [3, 1]"),
        (no_out, "verify_chain: out must be (tokens, num_accepted, logprobs, status), got Tensor"),
    ],
)
def test_results_that_one_rank_cannot_write(ranks, exchange, change, message):
    for rank, error in enumerate(said(ranks, exchange, change)):
        assert (message if rank == 1 else "verify_chain: all ranks must be able to make the call") in str(error), error
    serves_on(ranks, exchange)


@pytest.mark.parametrize("rounds", [0, *(pytest.param(n, marks=pytest.mark.thorough) for n in (1, 2, 3))])
def test_a_rank_is_killed(doomed, exchange, rounds):
    found = said(doomed, exchange, None, 1, rounds)
    assert found[1] == "gone"
    for rank in (0, 2):
        assert "verify_chain: all ranks must answer within the process group's timeout" in str(found[rank]), found[rank]
