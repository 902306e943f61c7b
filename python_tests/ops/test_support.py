# SPDX-License-Identifier: Apache-2.0
"""support against a comparison in float64. The checks take a function: the op passes them on every backend, and each
wrong version of the comparison fails one."""

import math

import numpy as np
import pytest
import torch
from support import backends, cases, flat
from support.backends import scale

import specdec_kernels as sk

INF, NAN = math.inf, math.nan
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# 1: a single id; 31, 32, 33: around a 32-bit word; 1024, 1025: a chunk and one more; 4099: prime, several chunks
WIDTHS = [1, 31, 32, 33, 1024, 1025, 4099]


class Compared:
    """The op in numpy: which ids are kept, and the results made from that. Each wrong version overrides one method."""

    def kept(self, z, scale, cutoff, log_norm, top):
        if math.isnan(log_norm):
            return np.zeros(len(z), dtype=bool)
        if math.isinf(scale):
            return np.arange(len(z)) == log_norm
        return z >= cutoff

    def room(self, V):
        """Return zeros for all bits of a row's words, also those beyond the row."""
        return np.zeros(-(-V // 32) * 32, dtype=bool)

    def listed(self, kept, max_kept):
        return np.flatnonzero(kept)[:max_kept]

    def row(self, n, N):
        return n if 0 <= n < N else None

    def pack(self, kept):
        return sum(kept.reshape(-1, 32)[:, j].astype(np.int64) << j for j in range(32))

    def __call__(self, rows, max_kept, *, num_rows=None):
        logits, stats = rows.logits, rows.stats
        N, V = logits.shape
        asked = list(range(N)) if rows.row is None else rows.row.tolist()
        ids, counts = np.full((len(asked), max_kept), -1), np.zeros(len(asked), dtype=np.int64)
        bits = np.zeros((len(asked), -(-V // 32)), dtype=np.int64)
        for i, n in enumerate(asked):
            n = self.row(n, N)
            if n is None or (num_rows is not None and i >= num_rows):
                continue
            room = self.room(V)
            room[:V] = kept = self.kept(logits[n].double().numpy(), *stats[n].double().tolist())
            lowest = self.listed(kept, max_kept)
            ids[i, : len(lowest)], counts[i], bits[i] = lowest, kept.sum(), self.pack(room)
        return tuple(torch.from_numpy(x).int() for x in (ids, counts, bits))


def compare(function, *args, **kwargs):
    got, want = function(*args, **kwargs), Compared()(*args, **kwargs)
    for name, a, b in zip(("ids", "counts", "bits"), got, want):
        assert a.shape == b.shape and torch.equal(a.int(), b), f"{name}: {a}, {b}"
    return got


# ---- the checks of a function. take(n, least): how many of n inputs a check takes, at least `least` -----------------


def check_ties(function, take):
    """Few values: every cutoff falls among equal logits, all of which stay."""
    rng = torch.Generator().manual_seed(1)
    for levels in (1, 2, 7):
        z = torch.randint(0, levels, (take(12, 2), 1100), generator=rng).float() - 1
        _, counts, _ = compare(function, sk.Rows(z, stats=sk.row_stats(sk.Rows(z, top_k=3))), 5)
        assert (counts >= 3).all() and (counts > 5).any()


def check_zeros(function, take):
    """-0 and +0 count as the same logit, whichever of them is the cutoff."""
    z = torch.tensor([[1.0, -0.0, 0.0, -1.0], [1.0, 0.0, -0.0, -1.0]])
    for cutoff in (0.0, -0.0):
        stats = torch.tensor([[1.0, cutoff, 0.5, 1.0]] * 2)
        assert compare(function, sk.Rows(z, stats=stats), 4)[2].tolist() == [[7], [7]]


def check_no_law(function, take):
    """Rows with NaN, +inf or nothing finite keep nothing, and other rows stay the same. -inf is not kept without a
    filter."""
    z = torch.randn(6, 1100, generator=torch.Generator().manual_seed(2))
    z[1, 7], z[2, 1050], z[3], z[4, 3:] = NAN, INF, -INF, -INF
    for params in ({}, {"top_k": 2}, {"temperature": 0.0}):
        _, counts, _ = compare(function, sk.Rows(z, stats=sk.row_stats(sk.Rows(z, **params))), 4)
        assert counts[1:4].tolist() == [0, 0, 0] and (counts[[0, 4, 5]] > 0).all()


def check_greedy(function, take):
    """A greedy row keeps only its argmax, the lowest id of equal maxima. It lies at the end of a word, at the start of
    the next, or at the end of the row."""
    z = torch.zeros(5, 1057)
    for n, v in enumerate((31, 32, 1023, 1024, 1056)):
        z[n, v:] = 1.0
    ids, counts, _ = compare(function, sk.Rows(z, stats=sk.row_stats(sk.Rows(z, temperature=0.0))), 2)
    assert ids[:, 0].tolist() == [31, 32, 1023, 1024, 1056] and (counts == 1).all()


def check_room(function, take):
    """If more ids are kept than max_kept, the lowest are listed."""
    z = torch.randn(3, 2100, generator=torch.Generator().manual_seed(3))
    z[1] = z[1].sort().values
    for max_kept in (0, 1, 39, 40, 41, 3000):
        ids, counts, _ = compare(function, sk.Rows(z, stats=sk.row_stats(sk.Rows(z, top_k=40))), max_kept)
        assert (counts == 40).all()


def check_rows(function, take):
    """Row indices: some rows, one of them twice; no rows; and indices out of range."""
    z = torch.randn(3, 40, generator=torch.Generator().manual_seed(4))
    stats = sk.row_stats(sk.Rows(z, top_p=0.7))
    for asked in ([2, 0, 2], [0], [], [-1, 3, 1, 2**31 - 1, -(2**31)]):
        for dtype in (torch.int32, torch.int64):
            compare(function, sk.Rows(z, stats=stats, row=torch.tensor(asked, dtype=dtype)), 9)
    compare(function, sk.Rows(z, stats=stats, row=torch.tensor([2**32, 2**63 - 1, -(2**63), 1])), 9)
    compare(function, sk.Rows(z, stats=stats, row=torch.tensor([2, 9, 0, 9, 1])[::2]), 9)
    compare(function, sk.Rows(z[:0], stats=stats[:0], row=torch.tensor([0, 1])), 9)


def check_padding(function, take):
    """Rows from num_rows on are absent, whatever they hold."""
    z = torch.randn(4, 1030, generator=torch.Generator().manual_seed(5))
    stats = sk.row_stats(sk.Rows(z, top_k=7))
    for n in (0, 2, 4, 9, -1):
        rows, floats = z.clone(), stats.clone()
        rows[max(n, 0) :], floats[max(n, 0) :] = NAN, NAN
        for dtype in (torch.int32, torch.int64):
            number = torch.tensor([n], dtype=dtype)
            ids, counts, bits = compare(function, sk.Rows(rows, stats=floats), 9, num_rows=number)
            assert (ids[max(n, 0) :] == -1).all() and not counts[max(n, 0) :].any() and not bits[max(n, 0) :].any()
            compare(function, sk.Rows(z, stats=stats, row=torch.tensor([3, 0, 1, 2])), 9, num_rows=number)


CHECKS = {name.removeprefix("check_"): f for name, f in list(globals().items()) if name.startswith("check_")}


@pytest.mark.parametrize("check", CHECKS)
def test_passes(backend, check):
    CHECKS[check](backends.call("support", backend), lambda n, least: scale(n, backend, least))


class AboveCutoff(Compared):
    def kept(self, z, scale, cutoff, log_norm, top):
        return super().kept(z, scale, np.nextafter(np.float32(cutoff), np.float32(INF)), log_norm, top)


class BelowCutoff(Compared):
    def kept(self, z, scale, cutoff, log_norm, top):
        return super().kept(z, scale, cutoff - 0.5, log_norm, top)


class Everything(Compared):
    def kept(self, z, scale, cutoff, log_norm, top):
        return super().kept(z, scale, cutoff if cutoff > -1e38 else -INF, log_norm, top)


class InvalidToo(Compared):
    def kept(self, z, scale, cutoff, log_norm, top):
        return super().kept(z, scale, cutoff, 0.0 if math.isnan(log_norm) else log_norm, top)


class GreedyTies(Compared):
    def kept(self, z, scale, cutoff, log_norm, top):
        return super().kept(z, 1.0, cutoff, log_norm, top)


class SignedZero(Compared):
    def kept(self, z, scale, cutoff, log_norm, top):
        return super().kept(np.where((z == 0) & np.signbit(z), -1e-30, z), scale, cutoff, log_norm, top)


class BitsBeyond(Compared):
    def room(self, V):
        return ~super().room(V)


class BigEndian(Compared):
    def pack(self, kept):
        return super().pack(kept.reshape(-1, 32)[:, ::-1].reshape(-1))


class HighestIds(Compared):
    def listed(self, kept, max_kept):
        return np.flatnonzero(kept)[::-1][:max_kept][::-1]


class FromTheEnd(Compared):
    def row(self, n, N):
        return n + N if -N <= n < 0 else super().row(n, N)


class Wrapped(Compared):
    def row(self, n, N):
        return super().row(n % 2**32, N)


WRONG = [
    AboveCutoff,
    BelowCutoff,
    Everything,
    InvalidToo,
    GreedyTies,
    SignedZero,
    BitsBeyond,
    BigEndian,
    HighestIds,
    FromTheEnd,
    Wrapped,
]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_version_is_caught(wrong):
    caught = 0
    for check in CHECKS.values():
        try:
            check(wrong(), lambda n, least: least)
        except AssertionError:
            caught += 1
    assert caught


# ---- rows of every shape --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("V", WIDTHS)
def test_agrees_with_a_comparison(isa_backend, V, dtype):
    n = scale(70, isa_backend, least=7)
    z, _ = cases.rows_pair(6, n, V, dtype=dtype)
    compare(
        backends.call("support", isa_backend),
        sk.Rows(z, stats=flat.call(sk.row_stats, z, **cases.parameters(7, n))),
        20,
    )
    compare(backends.call("support", isa_backend), sk.Rows(z, stats=sk.row_stats(z)), V)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_begin_anywhere(isa_backend, dtype):
    wide = torch.randn(3, 2100, generator=torch.Generator().manual_seed(7)).to(dtype)
    for rows in (wide[:, 1:2050], wide[::2, 7:1032], wide[:1].expand(3, 2100), wide[:, 16:2064]):
        compare(backends.call("support", isa_backend), sk.Rows(rows, stats=sk.row_stats(sk.Rows(rows, top_k=300))), 320)


def test_many_chunks(backend):
    """More chunks than a block has threads on a GPU, with few ids that lie far apart."""
    V = 300 * 1024 + 5 if backend in ("cpu", "cuda", "cuda-on-cpu", "triton") else 20 * 1024 + 5
    z = torch.zeros(1, V)
    z[0, [0, 5000, V // 2, V - 1]] = 1.0
    ids, counts, _ = compare(backends.call("support", backend), sk.Rows(z, stats=sk.row_stats(sk.Rows(z, top_k=4))), 6)
    assert ids.tolist() == [[0, 5000, V // 2, V - 1, -1, -1]] and counts.tolist() == [4]
    compare(backends.call("support", backend), sk.Rows(z, stats=sk.row_stats(sk.Rows(z, top_k=4))), 3)
    compare(backends.call("support", backend), sk.Rows(z, stats=sk.row_stats(z)), 2000)


def test_the_vocabulary_of_a_large_model():
    V = 151_936
    for dtype in DTYPES:
        z, _ = cases.rows_pair(8, 4, V, dtype=dtype, kinds=["peaked", "zeros", "near", "onehot"])
        for params in ({"top_k": 50, "top_p": 0.9}, {}, {"min_p": 0.01}):
            compare(sk.support, sk.Rows(z, stats=sk.row_stats(sk.Rows(z, **params))), 64)


def test_the_ends_of_a_dtype(backend):
    for dtype in DTYPES:
        most, least = torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal
        if backend == "triton-interpret" and dtype == torch.bfloat16:
            least *= 16  # the interpreter turns subnormal bfloat16 numbers into zeros
        z = torch.tensor([[0.0, most, -most, least, -least, least / 8, -least / 8, -0.0, most, -INF]]).to(dtype)
        for k in range(1, 11):
            compare(backends.call("support", backend), sk.Rows(z, stats=sk.row_stats(sk.Rows(z, top_k=k))), 10)


def test_a_law_over_the_support_is_the_row_s(op_backend):
    """A trainer can take the softmax of the kept logits / temperature: it is the distribution from which the token was
    drawn."""
    z = 3 * torch.randn(4, 700, generator=torch.Generator().manual_seed(9))
    T = torch.tensor([0.5, 1.0, 1.7, 0.9])
    stats = sk.row_stats(sk.Rows(z, temperature=T, top_k=12, top_p=0.9))
    ids, counts, _ = backends.run("support", op_backend, sk.Rows(z, stats=stats), 12)
    kept = z.gather(1, ids.clamp(min=0).long()).masked_fill(ids < 0, -INF)
    law = torch.zeros_like(z).scatter_add(1, ids.clamp(min=0).long(), (kept / T[:, None]).softmax(-1))
    scale, cutoff, log_norm, top = stats.T[..., None]
    want = torch.where(z >= cutoff, ((z - top) * scale - log_norm).exp(), 0.0)
    assert torch.allclose(law, want, atol=1e-6) and torch.equal(counts.long(), (want > 0).sum(1))


def test_errors():
    z = torch.zeros(2, 5)
    stats = sk.row_stats(z)
    for args, number, error, message in [
        ((z[0], stats, 1), None, ValueError, r"rows.logits must have shape \[N, V\], got \[5\]"),
        ((z, stats[:1], 1), None, ValueError, r"rows.stats must have shape \[N=2, 4\], got \[1, 4\]"),
        ((z, stats, -1), None, ValueError, r"max_kept must be in \[0, 2\^24\], got -1"),
        ((z, stats, 1 << 25), None, ValueError, r"max_kept must be in \[0, 2\^24\], got 33554432"),
        ((z, stats, 1, torch.zeros(1, 1).long()), None, ValueError, r"rows.row must have shape \[M\], got \[1, 1\]"),
        ((z, stats, 1, torch.zeros(1)), None, ValueError, "rows.row must be int32 or int64, got float32"),
        ((z, stats, 1), torch.zeros(2).long(), ValueError, r"num_rows must have shape \[1\], got \[2\]"),
    ]:
        with pytest.raises(error, match="support: " + message):
            logits, stats_, max_kept, *row = args
            sk.support(sk.Rows(logits, stats=stats_, row=row[0] if row else None), max_kept, num_rows=number)
