# SPDX-License-Identifier: Apache-2.0
"""kseq_rho: rho is the best valid one, on random pairs, by hand and at degenerate rows. Mutants fail."""

import contextlib
import math

import pytest
import torch
from support import backends, cases, flat, tiers
from support.kseq_rho_laws import EXACT, best, f, judge, laws_of_logits, laws_of_probs, widened
from support.kseq_rho_mutants import SOURCE_MUTANTS
from support.worker import Worker

import specdec_kernels as sk
from specdec_kernels import reference
from tools.cuda_on_cpu.build import CSRC
from tools.cuda_on_cpu.mutants import mutate

NAN, INF = math.nan, math.inf


def golden():
    return torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.2, 0.5, 0.3]])


def check(backend, z, y, k, kind):
    k64 = torch.as_tensor(k).double().expand(len(z))
    if kind == "probs":
        out = backends.run("kseq_rho", backend, z, y, k, kind="probs")
        return judge(*widened(laws_of_probs(z), laws_of_probs(y)), k64, out)
    stats = sk.row_stats(z), sk.row_stats(y)
    out = backends.run("kseq_rho", backend, sk.Rows(z, stats=stats[0]), sk.Rows(y, stats=stats[1]), k)
    p, q = widened(laws_of_logits(z, stats[0]), laws_of_logits(y, stats[1]))
    rounded = widened(z.float().softmax(-1).double(), y.float().softmax(-1).double())
    torch_off = (f(*rounded, k64, out.rho)[0] - f(p, q, k64, out.rho)[0]).abs().max().item()
    judge(p, q, k64, out, max(EXACT, 2 * torch_off))


def pairs(backend, seed, N, V, Vq=None, dtype=torch.float32, kind="logits"):
    N = backends.scale(N, backend, least=28)
    z, y = cases.rows_pair(seed, N, V, Vq, dtype)
    if kind == "probs":
        z, y = z.float().softmax(-1).to(dtype), y.float().softmax(-1).to(dtype)
    return z, y, torch.randint(1, 65, (N,), generator=torch.Generator().manual_seed(seed))


def test_a_draft_with_wrong_stats(isa_backend):
    """A probability of the draft above 1 counts as 0, also where wrong stats make it of logits."""
    z, y = cases.rows_pair(5, 12, 40)
    stats = sk.row_stats(y)
    stats[:, 2] -= 3  # ln of the sum: probabilities are 20 times as large
    sides = z, sk.Rows(y, stats=stats)
    found = backends.run("kseq_rho", isa_backend, *sides, 2)
    torch.testing.assert_close(found.rho.double(), reference.kseq_rho(*sides, 2).rho.double(), rtol=1e-5, atol=0)


F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
WIDTHS = [
    *[(V, V, F32) for V in (1, 3, 1025, 4099)],
    *[(33, 20, F16), (33, 50, BF16), (33, 50, F32), (1025, 1025, BF16)],
]


@pytest.mark.parametrize("kind", ["logits", "probs"])
@pytest.mark.parametrize("V, Vq, dtype", WIDTHS)
def test_is_the_best_valid_rho(op_backend, V, Vq, dtype, kind):
    """rho is the best valid one. The pairs are random, peaked, near, identical, disjoint and one-hot, with k from 1 to
    64. V is 1, 3 as in test_golden, 33 with narrower and wider drafts, 1025 (a chunk and one more), and 4099 (a prime,
    five chunks)."""
    check(op_backend, *pairs(op_backend, V + Vq, 28 if V > 1000 else 280, V, Vq, dtype, kind), kind)


@pytest.mark.parametrize(
    "k, rho, beta, p_acc",
    [
        (1, 1.0, 0.7, 0.7),
        (2, 1.456776436283, 0.543223563717, 0.791355287257),
        (3, 1.792593028269, 0.478925552044, 0.858518605654),
    ],
)
def test_golden(backend, k, rho, beta, p_acc):
    out = backends.run("kseq_rho", backend, *golden(), k, kind="probs")
    assert out.rho.item() == pytest.approx(rho, abs=5e-6)  # f falls by at least .2 per unit of rho
    assert [out.beta.item(), out.p_acc.item()] == pytest.approx([beta, p_acc], abs=1e-6)


@pytest.mark.parametrize("k", [1, 2, 64])
def test_exact_ends(backend, k):
    """With identical rows every first draft is accepted; with disjoint rows none is."""
    p, q = golden()
    assert [x.item() for x in backends.run("kseq_rho", backend, p, p, k, kind="probs")] == [1, 1, 1]
    z = p.log()
    out = backends.run("kseq_rho", backend, z, z, k)
    assert out.rho.item() == 1 and out.beta.item() == pytest.approx(1, abs=1e-6)
    apart = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    assert [x.item() for x in backends.run("kseq_rho", backend, *apart, k, kind="probs")] == [k, 0, 0]


def test_disjoint_and_nearly(backend):
    """beta and p_acc lie in [0, 1] even if rounding affects sums close to 1. At rho = k, disjoint rows accept
    nothing."""
    V = 1100
    rng = torch.Generator().manual_seed(9)
    p, q = torch.rand(2, backends.scale(60, backend), V, generator=rng).pow(4)
    at = torch.arange(V) % 2 == 0
    p, q = torch.where(at, p, 0.0), torch.where(at, 0.0, q)
    p, q = (x / x.sum(-1, keepdim=True) for x in (p, q))
    third = len(p) // 3
    q[:third, 0] = torch.logspace(-12, -5, third)  # the rows overlap by this much
    q[third : 2 * third, ::2] = 1e-9 * p[third : 2 * third, ::2]
    for k in (1, 2, 8, 64):
        rho, beta, p_acc = backends.run("kseq_rho", backend, p, q, k, kind="probs")
        assert ((beta >= 0) & (beta <= 1) & (p_acc >= 0) & (p_acc <= 1)).all() and ((rho >= 1) & (rho <= k)).all()
        assert (p_acc <= k * 1.1e-5 + 1e-6).all() and (
            p_acc >= beta
        ).all()  # each of k drafts adds at most the overlap, whose sum is off by a few ulp
        assert (beta[2 * third :] < 1e-6).all() and (rho[2 * third :] == k).all()
        z, y = p.log(), q.log()
        z_stats, y_stats = sk.row_stats(z), sk.row_stats(y)
        _, beta, p_acc = backends.run("kseq_rho", backend, sk.Rows(z, stats=z_stats), sk.Rows(y, stats=y_stats), k)
        assert ((beta >= 0) & (beta <= 1) & (p_acc >= 0) & (p_acc <= 1)).all()


def test_greedy_rows_are_one_hot(backend):
    """Stats at temperature 0 on either side or both: with p one-hot at a, sum min(rho q, p) = min(rho q(a), 1)."""
    z = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.5, 0.3]]).log()
    soft, hard = sk.row_stats(z), sk.row_stats(sk.Rows(z, temperature=0.0))
    rows = z[:1], z[1:]
    for p_stats, q_stats in ((hard, soft), (soft, hard), (hard, hard)):
        sides = sk.Rows(rows[0], stats=p_stats[:1]), sk.Rows(rows[1], stats=q_stats[1:])
        out, want = (backends.run("kseq_rho", name, *sides, 2) for name in (backend, "reference"))
        for a, b in zip(out, want):
            assert torch.allclose(a, b, atol=1e-6)
    certain = sk.Rows(rows[0], stats=hard[:1])
    assert backends.run("kseq_rho", backend, certain, certain, 2).rho.item() == 1


@pytest.mark.parametrize(
    "p, q",
    [
        ([NAN, 0.5, 0.5], [0.2, 0.5, 0.3]),
        ([0.5, INF, 0.2], [0.2, 0.5, 0.3]),
        ([0.0, 0.0, 0.0], [0.2, 0.5, 0.3]),
        ([0.5, 0.3, 0.2], [0.2, NAN, 0.3]),
        ([0.5, 0.3, 0.2], [0.0, 0.0, 0.0]),
        ([0.5, 0.3, 0.2], [1.2, 0.0, -1.0]),
    ],
)
def test_a_row_that_is_no_law(backend, p, q):
    """An invalid row gives rho = k and NaN for beta and p_acc. Other rows of the batch do not change."""
    good_p, good_q = golden()
    rows = torch.cat([good_p, torch.tensor([p]), good_p]), torch.cat([good_q, torch.tensor([q]), good_q])
    out = backends.run("kseq_rho", backend, *rows, 3, kind="probs")
    alone = backends.run("kseq_rho", backend, good_p, good_q, 3, kind="probs")
    assert out.rho[1] == 3 and out.beta[1].isnan() and out.p_acc[1].isnan()
    for a, b in zip(out, alone):
        assert a[0] == b[0] == a[2]


def test_a_row_of_logits_that_is_no_law(backend):
    z = torch.cat([row[None] for row, _ in cases.bad_rows(5)])
    good = torch.zeros(1, 5).expand(len(z), 5)
    for p, q in ((z, good), (good, z)):
        out = backends.run("kseq_rho", backend, p, q, 4)
        assert (out.rho == 4).all() and out.beta.isnan().all() and out.p_acc.isnan().all()


def test_rows_that_do_not_add_up_to_one(op_backend):
    """Rows that do not sum to 1 count as distributions: each is divided by its sum."""
    p, q = golden()
    want = backends.run("kseq_rho", op_backend, p, q, 3, kind="probs")
    for x in (0.25, 1.5):
        out = backends.run("kseq_rho", op_backend, p * x, q, 3, kind="probs")
        assert torch.allclose(torch.stack(out), torch.stack(want), atol=1e-6)


@pytest.mark.slow_in_triton
def test_batch_strides_and_the_type_of_k_change_no_bit(op_backend):
    z, y, k = pairs(op_backend, 8, 28, 1500)
    want = backends.run("kseq_rho", op_backend, z, y, k)
    again = backends.run("kseq_rho", op_backend, cases.strided(z), cases.strided(y, 7, 1), k.int())
    alone = [backends.run("kseq_rho", op_backend, z[i : i + 1], y[i : i + 1], int(k[i])) for i in range(0, 28, 5)]
    for a, b in zip(want, again):
        assert torch.equal(a, b)
    for i, one in zip(range(0, 28, 5), alone):
        assert [x.item() for x in one] == [x[i].item() for x in want]
    empty = backends.run("kseq_rho", op_backend, z[:0], y[:0], k[:0])
    assert [x.shape for x in empty] == [(0,)] * 3


@pytest.mark.parametrize("kind", ["logits", "probs"])
@pytest.mark.parametrize("V", [7, 50])
def test_a_hundred_thousand_pairs(V, kind):
    """Over many pairs, |f| and the loss of acceptance stay below 1e-6, and rho is always valid. Only make test-all
    tests all pairs; otherwise one in ten is tested."""
    for seed in range(10 if tiers.TIER == "all" else 1):
        check("cpu", *pairs("cpu", 100 + seed, 2500, V, kind=kind), kind)


MUTANTS = {
    "rho below the best": lambda p, q, k, rho: rho - 1e-5,
    "rho above the best": lambda p, q, k, rho: rho * 1.001,
    "always k": lambda p, q, k, rho: k,
    "always 1": lambda p, q, k, rho: torch.ones_like(k),
    "p and q swapped": lambda p, q, k, rho: best(q, p, k),
    "k less one": lambda p, q, k, rho: best(p, q, (k - 1).clamp(min=1)),
    "1 / rho": lambda p, q, k, rho: 1 / rho,
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_judge_catches(mutant):
    z, y, k = pairs("cpu", 3, 280, 50, kind="probs")
    p, q, k = laws_of_probs(z), laws_of_probs(y), k.double()
    rho = best(p, q, k)
    judge(p, q, k, sk.KSeqRhoOutput(rho.where((p.min(q) > 0).any(-1), k), *f(p, q, k, rho)[1:]))
    rho = MUTANTS[mutant](p, q, k, rho)
    with pytest.raises(AssertionError, match="rho|lost|f = "):
        judge(p, q, k, sk.KSeqRhoOutput(rho, *f(p, q, k, rho)[1:]))


def with_kernels_of(csrc, *args, **kwargs):
    from tools.cuda_on_cpu.build import load

    load("fast", csrc, ("kseq_rho",))
    return flat.call(sk.kseq_rho, *args, **kwargs)


@pytest.mark.thorough
@pytest.mark.parametrize("mutant", [None, *SOURCE_MUTANTS])
def test_the_judge_catches_in_the_source(mutant):
    z, y, k = pairs("cpu", 3, 280, 1025, kind="probs")
    csrc = mutate(CSRC, *SOURCE_MUTANTS[mutant]) if mutant else CSRC
    worker = Worker("mutant", {"OMP_NUM_THREADS": "1"})
    out = worker.call(with_kernels_of, csrc, z, y, k, kind="probs")
    worker.process.terminate()
    with contextlib.nullcontext() if mutant is None else pytest.raises(AssertionError, match="rho|lost|f = "):
        judge(laws_of_probs(z), laws_of_probs(y), k.double(), out)


def test_bad_arguments(op_backend):
    call = backends.call("kseq_rho", op_backend)
    p = torch.rand(3, 4)
    with pytest.raises(ValueError, match=r"kseq_rho: q.logits must have shape \[N=3, Vq=4\], got \[2, 4\]"):
        call(p, p[:2], 2)
    with pytest.raises(ValueError, match=r"kseq_rho: k must be >= 1 and below 2\^63, got 0"):
        call(p, p, 0)
    with pytest.raises(TypeError, match="kseq_rho: k must be an int or a tensor, got float"):
        call(p, p, 2.0)
    with pytest.raises(ValueError, match=r"kseq_rho: k must have shape \[3\] or \[1\], got \[2\]"):
        call(p, p, torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="kseq_rho: p.kind must be 'logits' or 'probs', got 'logit'"):
        call(p, p, 2, kind="logit")
    with pytest.raises(ValueError, match="kseq_rho: p.stats and sampling parameters need p.kind='logits', got 'probs'"):
        call(p, p, 2, p_stats=torch.zeros(3, 4), kind="probs")
    with pytest.raises(ValueError, match=r"kseq_rho: q.stats must have shape \[N=3, 4\], got \[3, 3\]"):
        call(p, p, 2, q_stats=torch.zeros(3, 3))
    with pytest.raises(ValueError, match="kseq_rho: p.logits must be .*got float64"):
        call(p.double(), p, 2)


def test_a_k_below_one_in_a_tensor():
    p = torch.rand(3, 4)
    with pytest.raises(ValueError, match="kseq_rho: k must be >= 1, got 0 at index 1"):
        sk.kseq_rho(p, p, torch.tensor([2, 0, 1]))
