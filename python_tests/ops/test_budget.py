# SPDX-License-Identifier: Apache-2.0
"""budget against a sort of all slots, and a check that drafts shortened by it keep the target's distribution. Results
are integers, so they must be equal on every backend."""

import contextlib
import itertools
import math
import random

import numpy
import pytest
import torch
from support import answers as reference
from support import backends
from support.budget_mutants import SOURCES
from support.worker import Worker

import specdec_kernels as sk
from tools.cuda_on_cpu.build import CSRC
from tools.cuda_on_cpu.mutants import mutate

NAN, INF = math.nan, math.inf


def spread(backend, survival, total, num_drafts=None):
    return backends.run("budget", backend, survival, total, num_drafts)


def sorted_slots(survival, total, num_drafts=None):
    """Return budget's result by sorting all slots: by falling survival, then by position, then by request."""
    B, G = survival.shape
    worth = numpy.minimum.accumulate(numpy.nan_to_num(survival.double().numpy(), nan=0.0, posinf=INF).clip(0), 1)
    i, b = numpy.arange(G)[None].repeat(B, 0), numpy.arange(B)[:, None].repeat(G, 1)
    there = i < (numpy.full(B, G) if num_drafts is None else num_drafts.numpy().clip(0, G))[:, None]
    worth, i, b = worth[there], i[there], b[there]
    best = numpy.lexsort((b, i, -worth))[:total]
    return torch.from_numpy(numpy.bincount(b[best], minlength=B)[:B]).int()


def check(backend, survival, total, num_drafts=None):
    got = spread(backend, survival, total, num_drafts)
    want = sorted_slots(survival, total, num_drafts)
    assert got.dtype == torch.int32 and torch.equal(got, want), f"{survival}, {total}, {num_drafts}: {got}, {want}"
    assert torch.equal(want, reference.budget(survival, total, num_drafts))
    return got


def batch(rng, B, G):
    """Return random survival, steep or flat, with equal values and with invalid ones, and lengths or None."""
    g = torch.Generator().manual_seed(rng.getrandbits(32))
    x = torch.rand(B, G, generator=g) ** rng.choice((0.1, 1.0, 20.0))
    x = x.cumprod(1) if rng.random() < 0.7 else x
    x = (x * 4).round() / 4 if rng.random() < 0.4 else x
    for _ in range(rng.choice((0, 0, 4)) if x.numel() else 0):
        x.view(-1)[rng.randrange(x.numel())] = rng.choice((NAN, INF, -INF, -1.0, -0.0, 0.0, 1e-45, 3e38))
    lengths = torch.randint(0, G + 1, (B,), generator=g)
    return x, rng.choice((None, lengths, lengths.int()))


# ---- against a sort -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("B", [1, 2, 7, 64, 255, 257, 600])  # fewer and more requests than a block has threads
def test_agrees_with_a_sort(backend, B):
    rng = random.Random(B)
    for _ in range(backends.scale(100, backend, least=14)):
        G = rng.choice((1, 2, 5, 8))
        survival, lengths = batch(rng, B, G)
        check(backend, survival, rng.choice((0, 1, B // 2, B, B * G // 2, B * G - 1, B * G, 10**15)), lengths)


def test_by_hand(backend):
    survival = torch.tensor([[0.9, 0.5, 0.2], [0.6, 0.4, 0.3]])
    kept = [check(backend, survival, total).tolist() for total in range(8)]
    assert kept == [[0, 0], [1, 0], [1, 1], [2, 1], [2, 2], [2, 3], [3, 3], [3, 3]]
    # If survivals are equal, the earlier position comes first, then the lower request.
    kept = [check(backend, torch.ones(3, 2), total).tolist() for total in range(7)]
    assert kept == [[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1], [2, 1, 1], [2, 2, 1], [2, 2, 2]]
    # Where survival rises along a row, the smallest value so far counts.
    assert check(backend, torch.tensor([[0.1, 0.9], [0.5, 0.2]]), 2).tolist() == [0, 2]


def test_lengths(backend):
    survival = torch.tensor([[0.9, 0.8, 0.7], [0.6, 0.5, 0.4], [0.3, 0.2, 0.1]])
    assert check(backend, survival, 4, torch.tensor([1, 0, 3])).tolist() == [1, 0, 3]
    assert check(backend, survival, 3, torch.tensor([2, 1, 0])).tolist() == [2, 1, 0]
    assert check(backend, survival, 2, torch.tensor([0, 2, 2])).tolist() == [0, 2, 0]
    wide = torch.tensor([1, 9, 0, 9, 3, 9])[::2]
    assert torch.equal(check(backend, survival, 4, wide), torch.tensor([1, 0, 3], dtype=torch.int32))


@pytest.mark.parametrize("value", [NAN, -1.0, -INF, -0.0])
def test_what_is_no_survival_counts_as_0(backend, value):
    survival = torch.tensor([[0.5, value, 0.9], [0.4, 0.3, 1e-45]])
    assert [check(backend, survival, total).tolist() for total in (3, 4, 5, 6)] == [[1, 2], [1, 3], [2, 3], [3, 3]]


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_nothing_to_spread(backend, shape):
    for total in (0, 5):
        assert check(backend, torch.zeros(shape), total).tolist() == [0] * shape[0]


def test_strides(backend):
    survival, _ = batch(random.Random(4), 5, 6)
    for x in (survival.t().contiguous().t(), torch.stack([survival, -survival], 2)[..., 0], survival[:1].expand(5, 6)):
        check(backend, x, 11)


def test_bad_arguments(op_backend):
    x = torch.zeros(2, 3)
    wrong = [
        ((x.double(), 2), "survival must be float32, got float64"),
        ((x[0], 2), r"survival must have shape \[B, G\], got \[3\]"),
        ((x[:, :1].expand(2, 1 << 30), 2), "survival must have at most 2\\^30 slots, got 2 requests of 1073741824"),
        ((x, -1), r"total must be >= 0 and below 2\^63, got -1"),
        ((x, 2, torch.tensor([1])), r"num_drafts must have shape \[B=2\], got \[1\]"),
        ((x, 2, x[:, 0]), "num_drafts must be int32 or int64, got float32"),
    ]
    for args, message in wrong:
        with pytest.raises(ValueError, match=f"^budget: {message}$"):
            spread(op_backend, *args)
    with pytest.raises(TypeError, match="^budget: total must be an int, got float$"):
        spread(op_backend, x, 2.5)


@pytest.mark.parametrize("lengths", [[1, 4], [-1, 2], [2**40, 1]])
def test_lengths_out_of_range_raise_on_the_cpu_and_are_clamped_elsewhere(op_backend, lengths):
    survival, lengths = torch.tensor([[0.9, 0.8, 0.7], [0.6, 0.5, 0.4]]), torch.tensor(lengths)
    if op_backend == "cpu":
        with pytest.raises(ValueError, match=r"^budget: num_drafts must be in \[0, G=3\], got -?\d+ at index [01]$"):
            spread(op_backend, survival, 3, lengths)
        return
    got = backends.run_without_values("budget", op_backend, survival, 3, lengths)
    assert torch.equal(got, sorted_slots(survival, 3, lengths))


# ---- what stays exact -----------------------------------------------------------------------------------------------

V = 3
KNOWN_BEFORE = {  # scores from the draft's row alone, known before its token is drawn
    "row maximum": lambda row, token: row.max(),
    "sum of squares": lambda row, token: (row**2).sum(),
    "entropy": lambda row, token: 1 + (row * numpy.log(row)).sum() / math.log(V),
}


def model(rng):
    """Return a request's distributions: [V] for the first token, and [V, V] for the second after each first token."""
    return rng.dirichlet(numpy.ones(V)), rng.dirichlet(numpy.ones(V), V)


def emitted(p, q, drafts, kept):
    """Return the distribution [V, V] of the first two tokens if `kept` of the drafts are verified, and plain decoding
    follows."""
    plain, (x, y) = p[0][:, None] * p[1], drafts
    if kept == 0:
        return plain
    out = numpy.zeros((V, V))
    accept = min(1.0, p[0][x] / q[0][x])
    after = p[1][x].copy()
    if kept == 2:
        second, rest = min(1.0, p[1][x, y] / q[1][x, y]), numpy.maximum(p[1][x] - q[1][x], 0)
        after = (1 - second) * rest / rest.sum()
        after[y] += second
    out[x] += accept * after
    rest = numpy.maximum(p[0] - q[0], 0)
    return out + (1 - accept) * (rest / rest.sum())[:, None] * p[1]


def law_error(backend, score, total, seed):
    """Return the total variation between the distribution of a request's first two tokens and the target's: the larger
    of two requests. It sums over all drafts of both."""
    rng = numpy.random.default_rng(seed)
    p, q = [model(rng) for _ in range(2)], [model(rng) for _ in range(2)]
    drafts = list(itertools.product(range(V), repeat=2))
    c = {(b, x, y): numpy.cumprod([score(q[b][0], x), score(q[b][1][x], y)]) for b in range(2) for x, y in drafts}
    found = [numpy.zeros((V, V)) for _ in range(2)]
    for first, second in itertools.product(drafts, drafts):
        survival = torch.tensor(numpy.array([c[(0, *first)], c[(1, *second)]]), dtype=torch.float32)
        kept = spread(backend, survival, total).tolist()
        chance = math.prod(q[b][0][x] * q[b][1][x, y] for b, (x, y) in enumerate((first, second)))
        for b, own in enumerate((first, second)):
            found[b] += chance * emitted(p[b], q[b], own, kept[b])
    return max(numpy.abs(found[b] - p[b][0][:, None] * p[b][1]).sum() / 2 for b in range(2))


@pytest.mark.parametrize("total", [1, 2, 3])
@pytest.mark.slow_in_triton
def test_survival_known_before_the_token_keeps_the_distribution(backend, total):
    """All drafts of two requests are enumerated. The control takes the probability of the drawn token as its survival,
    which biases the output."""
    for seed in range(6 if backend == "cpu" else 1):
        for name, score in KNOWN_BEFORE.items():
            assert law_error(backend, score, total, seed) < 1e-12, (name, seed)
    errors = [
        law_error(backend, lambda row, token: row[token], total, seed) for seed in range(6 if backend == "cpu" else 1)
    ]
    assert 0.02 < min(errors) <= max(errors) < 0.16


def test_the_rows_stats_give_a_survival():
    """The formula in budget's docstring gives the product of the rows' largest probabilities, and verify_chain accepts
    the ragged batch that results."""
    g, B, G = torch.Generator().manual_seed(1), 3, 4
    rng = dict(seed=torch.arange(B), offset=torch.zeros(B, dtype=torch.int64))
    rows = torch.randn(B, G, 7, generator=g) * 3
    steps = [sk.sample(rows[:, i], k=1, slot=i, **rng) for i in range(G)]
    draft, drafts = sk.stack_rows([step.rows for step in steps]), torch.cat([step.tokens for step in steps], 1)
    survival = (-draft.stats[..., 2]).exp().cumprod(1)
    assert torch.allclose(survival, rows.softmax(-1).amax(-1).cumprod(1), rtol=1e-5)
    kept = sk.budget(survival, 6)
    cu_draft, there = torch.tensor([0, *kept.cumsum(0)]), torch.arange(G) < kept[:, None]
    target = torch.randn(6 + B, 7, generator=g)
    ragged = sk.Rows(draft.logits[there], stats=draft.stats[there])
    out = sk.verify_chain(target, drafts[there], ragged, cu_draft=cu_draft, max_draft=G, **rng)
    assert (out.num_accepted <= kept).all() and (out.tokens[:, 0] >= 0).all() and (out.status == 0).all()


# ---- mutants --------------------------------------------------------------------------------------------------------


def with_kernels_of(csrc, calls):
    from tools.cuda_on_cpu.build import load

    load("fast", csrc, ("budget",))
    return [backends.public("budget", *args) for args in calls]


@pytest.mark.thorough
@pytest.mark.parametrize("mutant", [None, *SOURCES])
def test_a_wrong_line_is_caught(mutant):
    rng, calls = random.Random(6), []
    for B, G in ((2, 3), (7, 5), (300, 4), (40, 8)):
        survival, _ = batch(rng, B, G)
        lengths = torch.randint(0, G + 1, (B,), generator=torch.Generator().manual_seed(B))
        calls += [(survival, total, n) for total in (0, B, 2 * B, B * G) for n in (None, lengths, 2 * lengths - 1)]
    calls += [(torch.tensor([[0.5, x, 0.9], [0.4, 0.0, 0.0]]), 3, None) for x in (NAN, -1.0, 0.7)]
    calls += [(torch.ones(300, 3), 400, None)]
    worker = Worker("mutant", {"OMP_NUM_THREADS": "1"})
    csrc = mutate(CSRC, *SOURCES[mutant]) if mutant else CSRC
    # A mutant that reads elsewhere may end its process.
    with contextlib.nullcontext() if mutant is None else pytest.raises((AssertionError, ChildProcessError)):
        for got, args in zip(worker.call(with_kernels_of, csrc, calls), calls):
            assert torch.equal(got, sorted_slots(*args))
    worker.process.terminate()
