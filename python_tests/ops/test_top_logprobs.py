# SPDX-License-Identifier: Apache-2.0
"""top_logprobs against a sort in float64. The checks take a function: the op passes them on every backend, and each
wrong version of the sort fails one."""

import math

import numpy as np
import pytest
import torch
from support import backends, cases, flat
from support.backends import scale

import specdec_kernels as sk
from specdec_kernels import reference
from specdec_kernels.reference.banded.band import EPS

INF, NAN = math.inf, math.nan
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# 1: a single id; 31, 33: around a 32-bit word; 1024, 1025: a chunk and one more; 4099: prime, more than a GPU sorts at
# once
WIDTHS = [1, 31, 33, 1024, 1025, 4099]


class Sorted:
    """The op in numpy: one stable sort, and the distribution as defined. Each wrong version overrides one method."""

    def keys(self, z):
        return -z  # a stable sort keeps equal logits in the order of their ids, and puts NaN last

    def order(self, z):
        return np.argsort(self.keys(z), kind="stable")

    def kept(self, z, cutoff):
        return z >= cutoff

    def rank(self, z, v):
        return int((z >= z[v]).sum())

    def inside(self, v, V):
        return v if 0 <= v < V else None

    def log_p(self, z, scale, cutoff, log_norm, top):
        if math.isnan(log_norm):
            return np.full(len(z), NAN)
        if math.isinf(scale):
            return np.where(np.arange(len(z)) == log_norm, 0.0, -INF)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.where(self.kept(z, cutoff), (z - top) * scale - log_norm, -INF)

    def present(self, n, num_rows):
        return num_rows is None or n < num_rows

    def __call__(self, rows, k, tokens=None, *, num_rows=None):
        logits, stats = rows.logits, rows.stats
        N, V = logits.shape
        m = 0 if tokens is None else tokens.shape[1]
        ids, ranks = np.full((N, k), -1), np.zeros((N, m), dtype=np.int64)
        logprobs, of_tokens = np.zeros((N, k)), np.zeros((N, m))
        for n in range(N):
            if not self.present(n, num_rows):
                continue
            z = logits[n].double().numpy()
            log_p = self.log_p(z, *stats[n].double().tolist())
            ids[n] = self.order(z)[:k]
            logprobs[n] = log_p[ids[n]]
            for j in range(m):
                v = self.inside(int(tokens[n, j]), V)
                of_tokens[n, j], ranks[n, j] = (-INF, 0) if v is None else (log_p[v], self.rank(z, v))
        return tuple(map(torch.from_numpy, (ids, logprobs, of_tokens, ranks)))


def close(got, want):
    """Return whether float32 logprobs equal float64 rounded once. Neither term of x - log_norm is positive, so nothing
    cancels."""
    want = want.double()
    with_overflow = want.float().double()
    bound = EPS * want.abs() * (1 + 1e-6) + 2.0**-149
    same = (got.double() == with_overflow) | (got.isnan() & want.isnan())
    return bool((same | ((got.double() - want).abs() <= bound)).all())


def compare(function, *args, **kwargs):
    got, want = function(*args, **kwargs), Sorted()(*args, **kwargs)
    for i, name in ((0, "ids"), (3, "token_ranks")):
        assert got[i].shape == want[i].shape and torch.equal(got[i].long(), want[i]), f"{name}: {got[i]}, {want[i]}"
    for i, name in ((1, "logprobs"), (2, "token_logprobs")):
        assert got[i].shape == want[i].shape and close(got[i], want[i]), f"{name}: {got[i]}, {want[i]}"
    return got


def some_k(V, backend):
    few = {min(V, 5), V}
    return sorted(few if backends.BACKENDS[backend].slower > 1 else few | {0, min(V, 1), min(V, 300)})


def some_tokens(N, V, seed=1, m=3):
    return torch.randint(-1, V + 1, (N, m), generator=torch.Generator().manual_seed(seed))


# ---- the checks of a function. take(n, least): how many of n inputs a check takes, at least `least` -----------------


def check_ties(function, take):
    """Few values, so that ids decide nearly every place of the order."""
    rng = torch.Generator().manual_seed(2)
    for levels in (1, 2, 7):
        z = torch.randint(0, levels, (take(12, 2), 2100), generator=rng).float()
        for k in (1, 40, 2100):
            compare(function, sk.Rows(z, stats=sk.row_stats(z)), k, some_tokens(len(z), 2100))


def check_zeros(function, take):
    """-0 and +0 count as the same logit, and have the same rank."""
    z = torch.tensor([[-1.0, 0.0, -0.0, 2.0, -0.0, 0.0]])
    got = compare(function, sk.Rows(z, stats=sk.row_stats(z)), 6, torch.arange(6)[None])
    assert got[0].tolist() == [[3, 1, 2, 4, 5, 0]] and got[3].tolist() == [[6, 5, 5, 1, 5, 5]]


def check_filters(function, take):
    """Below the cutoff, ids follow in the order of their logits, with logprob -inf."""
    n = take(28, 4)
    z, _ = cases.rows_pair(3, n, 257)
    for params in ({"top_k": 5}, {"top_p": 0.6, "temperature": 0.7}, {"min_p": 0.2}, {"temperature": 0.0}):
        got = compare(function, sk.Rows(z, stats=sk.row_stats(sk.Rows(z, **params))), 257, some_tokens(n, 257))
        assert (got[1] == -INF).any() and (got[0].sort(1).values == torch.arange(257)).all()


def check_no_law(function, take):
    """Rows with NaN or +inf: the order is +inf, finite logits, -inf, NaN. Other rows stay the same."""
    z = torch.randn(5, 1100, generator=torch.Generator().manual_seed(4))
    good = z.clone()
    z[1, 7], z[1, 1050] = NAN, INF
    z[2] = NAN
    z[3] = -INF
    z[3, ::2] = -NAN
    z[4, 1:] = -INF
    tokens = torch.tensor([[7, 1050, 3]]).expand(5, 3)
    for k in (3, 1100):
        got = compare(function, sk.Rows(z, stats=sk.row_stats(z)), k, tokens)
        alone = function(sk.Rows(good, stats=sk.row_stats(good)), k, tokens)
        assert all(torch.equal(a[:1], b[:1]) for a, b in zip(got, alone))
        assert got[1][1:4].isnan().all() and got[2][1:4].isnan().all() and not got[1][[0, 4]].isnan().any()
    assert got[0][1, [0, -1]].tolist() == [1050, 7] and got[3][1].tolist() == [0, 1, got[3][1, 2]]
    assert got[0][3].tolist() == [*range(1, 1100, 2), *range(0, 1100, 2)]


def check_tokens(function, take):
    """Ids given twice, and ids outside the vocabulary, up to the ends of their integer type."""
    z = torch.randn(2, 40, generator=torch.Generator().manual_seed(5))
    ends = [3, 3, -1, 40, 39, 0, 2**31 - 1, -(2**31)]
    for tokens in (
        torch.tensor([ends, ends], dtype=torch.int32),
        torch.tensor([[*ends, 2**63 - 1, -(2**63), 2**32]] * 2),
    ):
        got = compare(function, sk.Rows(z, stats=sk.row_stats(sk.Rows(z, top_k=9))), 2, tokens)
        outside = (tokens < 0) | (tokens >= 40)
        assert (got[2][outside] == -INF).all() and (got[3][outside] == 0).all() and (got[3][~outside] > 0).all()
        assert torch.equal(got[3][:, 0], got[3][:, 1])
    wide = torch.zeros(2, 11, dtype=torch.int64)
    wide[:, ::5] = torch.tensor([[3, 4, 5]])
    compare(function, sk.Rows(z, stats=sk.row_stats(z)), 0, wide[:, ::5])
    compare(function, sk.Rows(z, stats=sk.row_stats(z)), 0, torch.tensor([[3], [4]]).expand(2, 3))


def check_padding(function, take):
    """Rows from num_rows on are absent, whatever they hold."""
    z = torch.randn(4, 1030, generator=torch.Generator().manual_seed(6))
    stats, tokens = sk.row_stats(z), some_tokens(4, 1030)
    for n in (0, 2, 4, 9, -1):
        there = max(n, 0)
        rows, floats, ids = z.clone(), stats.clone(), tokens.clone()
        rows[there:], floats[there:], ids[there:] = NAN, NAN, -(2**40)
        for dtype in (torch.int32, torch.int64):
            got = compare(function, sk.Rows(rows, stats=floats), 3, ids, num_rows=torch.tensor([n], dtype=dtype))
            assert (got[0][there:] == -1).all() and not any(x[there:].any() for x in got[1:])


def test_the_reference_is_not_rounded_to_float32():
    z, _ = cases.rows_pair(1, 14, 257)
    rows = sk.Rows(z, stats=sk.row_stats(sk.Rows(z, temperature=0.7)))
    want = Sorted()(rows, 5, tokens := some_tokens(14, 257))
    assert not want[1].equal(want[1].float().double()), "nothing to round"
    for got, x in zip(reference.top_logprobs(rows, 5, tokens), want, strict=True):
        assert got.dtype == x.dtype and torch.allclose(got, x, rtol=1e-14, atol=0, equal_nan=True)


CHECKS = {name.removeprefix("check_"): f for name, f in list(globals().items()) if name.startswith("check_")}


@pytest.mark.parametrize("check", CHECKS)
def test_passes(backend, check):
    CHECKS[check](backends.call("top_logprobs", backend), lambda n, least: scale(n, backend, least))


class HighestFirst(Sorted):
    def order(self, z):
        return len(z) - 1 - np.argsort(self.keys(z)[::-1], kind="stable")


class Strict(Sorted):
    def rank(self, z, v):
        return int((z > z[v]).sum()) + 1


class NanFirst(Sorted):
    def keys(self, z):
        return np.where(np.isnan(z), -INF, -z)


class BitsOfZero(Sorted):
    def keys(self, z):
        return np.where((z == 0) & np.signbit(z), 1e-300, -z)


class ByRank(Sorted):
    def rank(self, z, v):
        return int(np.flatnonzero(self.order(z) == v)[0]) + 1


class Unfiltered(Sorted):
    def kept(self, z, cutoff):
        return z > -INF


class CutoffAside(Sorted):
    def kept(self, z, cutoff):
        return z > cutoff


class Clamped(Sorted):
    def inside(self, v, V):
        return min(max(v, 0), V - 1)


class Wrapped(Sorted):
    def inside(self, v, V):
        return v % 2**32 if 0 <= v % 2**32 < V else None


class OneMore(Sorted):
    def present(self, n, num_rows):
        return num_rows is None or n <= num_rows


WRONG = [HighestFirst, Strict, NanFirst, BitsOfZero, ByRank, Unfiltered, CutoffAside, Clamped, Wrapped, OneMore]


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
def test_agrees_with_a_sort(isa_backend, V, dtype):
    n = scale(28, isa_backend, least=7)
    z, _ = cases.rows_pair(1, n, V, dtype=dtype)
    stats = flat.call(sk.row_stats, z, **cases.parameters(2, n))
    for k in some_k(V, isa_backend):
        compare(backends.call("top_logprobs", isa_backend), sk.Rows(z, stats=stats), k, some_tokens(n, V))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_begin_anywhere(isa_backend, dtype):
    wide = torch.randn(3, 2100, generator=torch.Generator().manual_seed(7)).to(dtype)
    for rows in (wide[:, 1:2050], wide[::2, 7:1032], wide[:1].expand(3, 2100), wide[:, 16:2064]):
        compare(
            backends.call("top_logprobs", isa_backend),
            sk.Rows(rows, stats=sk.row_stats(rows)),
            9,
            some_tokens(len(rows), rows.size(1)),
        )


@pytest.mark.parametrize("k", [3, 13, 14, 4095, 4096, 4097, 9000])
def test_more_than_is_sorted_at_once(backend, k):
    """13 chunks: up to k = 13, the k best chunks bound the k best ids. A block sorts 4096 entries at once; in the last
    rows more than that tie."""
    V = 12 * 1024 + 77
    rng = torch.Generator().manual_seed(k)
    z = torch.randn(3, V, generator=rng)
    z[1] = z[1].sort().values  # the best all lie in the last chunk
    z[2] = torch.where(torch.rand(V, generator=rng) < 0.001, 1.0, 0.0)
    if backend == "triton-interpret":  # its kernels have no such limit
        z = z[:1] if k > 4096 else z[1:]
    compare(backends.call("top_logprobs", backend), sk.Rows(z, stats=sk.row_stats(z)), k, some_tokens(len(z), V))


def test_the_vocabulary_of_a_large_model():
    V = 151_936
    for dtype in DTYPES:
        z, _ = cases.rows_pair(8, 3, V, dtype=dtype, kinds=["peaked", "zeros", "near"])
        for k in (0, 1, 20, 64, 5000) if dtype == torch.float32 else (20, V):
            compare(sk.top_logprobs, sk.Rows(z, stats=sk.row_stats(sk.Rows(z, top_p=0.9))), k, some_tokens(3, V))


@pytest.mark.parametrize("T", [1e-37, 1e-3, 0.01, 100.0, 1e30])
def test_scales(backend, T):
    """Logprobs beyond -1e38 (which may be -inf in float32), and logprobs that are all equal."""
    z = 300 * torch.randn(2, 70, generator=torch.Generator().manual_seed(1))
    z[1] /= 1e6
    compare(
        backends.call("top_logprobs", backend),
        sk.Rows(z, stats=sk.row_stats(sk.Rows(z, temperature=T))),
        70,
        some_tokens(2, 70),
    )


def test_the_ends_of_a_dtype(backend):
    for dtype in DTYPES:
        most, least = torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal
        if backend == "triton-interpret" and dtype == torch.bfloat16:
            least *= 16  # the interpreter turns subnormal bfloat16 numbers into zeros
        z = torch.tensor([[0.0, most, -most, least, -least, least / 8, -least / 8, -0.0, most, -INF]] * 2).to(dtype)
        z[1] = z[1].flip(0)
        got = compare(
            backends.call("top_logprobs", backend),
            sk.Rows(z, stats=sk.row_stats(z)),
            10,
            torch.arange(10).expand(2, 10),
        )
        assert got[0][0].tolist() == [1, 8, 3, 5, 0, 7, 6, 4, 2, 9]


# ---- what an engine asks for ----------------------------------------------------------------------------------------


def test_the_four_modes_of_vllm(op_backend):
    """vLLM's raw and processed logprobs and logits, against torch on the processed rows."""
    rng = torch.Generator().manual_seed(9)
    z, T, k = 3 * torch.randn(4, 500, generator=rng), torch.tensor([0.5, 1.0, 2.0, 0.9]), 8
    rows = torch.arange(4)[:, None]
    kept = torch.zeros(4, 500, dtype=torch.bool)
    kept[rows, z.topk(3).indices] = True
    call = backends.call("top_logprobs", op_backend)
    raw = call(sk.Rows(z, stats=sk.row_stats(z)), k)
    stats = sk.row_stats(sk.Rows(z, temperature=T, top_k=3))
    processed = call(sk.Rows(z, stats=stats), k)
    assert torch.equal(raw.ids, z.topk(k).indices) and torch.equal(raw.ids, processed.ids)
    scaled = (z / T[:, None]).masked_fill(~kept, -INF)
    for got, want in ((raw.logprobs, z.log_softmax(-1)), (processed.logprobs, scaled.log_softmax(-1))):
        assert torch.allclose(got, want.gather(1, raw.ids), rtol=1e-5, atol=1e-5)
    logits = z.gather(1, processed.ids)
    assert torch.equal(logits, z.topk(k).values)
    logits = torch.where(processed.logprobs > -INF, logits * stats[:, :1], -INF)
    assert torch.allclose(logits, scaled.gather(1, processed.ids), rtol=1e-6)


def test_a_greedy_row(op_backend):
    z = torch.tensor([[1.0, 3.0, 3.0, 2.0]])
    got = backends.run(
        "top_logprobs",
        op_backend,
        sk.Rows(z, stats=sk.row_stats(sk.Rows(z, temperature=0.0))),
        4,
        torch.tensor([[1, 2]]),
    )
    assert got.ids.tolist() == [[1, 2, 3, 0]] and got.logprobs.tolist() == [[0, -INF, -INF, -INF]]
    assert got.token_logprobs.tolist() == [[0, -INF]] and got.token_ranks.tolist() == [[2, 2]]


def test_dtypes_and_shapes(op_backend):
    z = torch.zeros(2, 5)
    got = backends.run("top_logprobs", op_backend, sk.Rows(z, stats=sk.row_stats(z)), 0)
    assert [x.dtype for x in got] == [torch.int64, torch.float32, torch.float32, torch.int64]
    assert [list(x.shape) for x in got] == [[2, 0]] * 4
    got = backends.run(
        "top_logprobs", op_backend, sk.Rows(z[:0], stats=sk.row_stats(z)[:0]), 3, torch.zeros(0, 2, dtype=torch.int64)
    )
    assert [list(x.shape) for x in got] == [[0, 3], [0, 3], [0, 2], [0, 2]]


def test_errors():
    z, ids = torch.zeros(2, 5), torch.zeros(2, 1, dtype=torch.int64)
    stats = sk.row_stats(z)
    for args, number, error, message in [
        ((z[0], stats, 1), None, ValueError, r"rows.logits must have shape \[N, V\], got \[5\]"),
        ((z, stats[:1], 1), None, ValueError, r"rows.stats must have shape \[N=2, 4\], got \[1, 4\]"),
        ((z, stats, 6), None, ValueError, r"k must be in \[0, V=5\], got 6"),
        ((z, stats, -1), None, ValueError, r"k must be in \[0, V=5\], got -1"),
        ((z, stats, 0.5), None, TypeError, "k must be an int, got float"),
        ((z, stats, 1, ids[0]), None, ValueError, r"tokens must have shape \[N, m\], got \[1\]"),
        ((z, stats, 1, ids[:1]), None, ValueError, r"tokens must have shape \[N=2, m=1\], got \[1, 1\]"),
        ((z, stats, 1, ids.float()), None, ValueError, "tokens must be int32 or int64, got float32"),
        (
            (z, stats, 1, ids),
            torch.zeros(2, dtype=torch.int64),
            ValueError,
            r"num_rows must have shape \[1\], got \[2\]",
        ),
        ((z, stats, 1, ids), torch.zeros(1), ValueError, "num_rows must be int32 or int64, got float32"),
    ]:
        with pytest.raises(error, match="top_logprobs: " + message):
            logits, stats_, *rest = args
            sk.top_logprobs(sk.Rows(logits, stats=stats_), *rest, num_rows=number)
