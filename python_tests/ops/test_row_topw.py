# SPDX-License-Identifier: Apache-2.0
"""row_topw (the w best ids by score + ln p) against a sort of the rounded sums. The checks take a function: the op
passes them on every backend, and each wrong version of the sort fails one.

With given stats, every bit must be equal on all backends and instruction sets. Without them, results are compared with
the backend's own row_stats, and bounded by float64.
"""

import math

import numpy as np
import pytest
import torch
from support import backends, cases, flat
from support.backends import scale

import specdec_kernels as sk
from specdec_kernels.reference.banded.band import EPS, SUM_EPS
from specdec_kernels.reference.row_topw import row_topw as reference

INF, NAN = math.inf, math.nan
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# 1: a single id; 31, 33: around a 32-bit word; 1024, 1025: a chunk and one more; 4099: prime, more than a GPU sorts at
# once
WIDTHS = [1, 31, 33, 1024, 1025, 4099]
FLAT = -3000.0  # neighbours are 2^-12 apart


class Sorted:
    """The op in numpy: float32 of the float64 sum, and one sort. Each wrong version overrides one method."""

    def worth(self, score, log_p):
        with np.errstate(over="ignore", invalid="ignore"):
            return (score + log_p).astype(np.float32)

    def order(self, z, worth):
        return np.lexsort((np.arange(len(z)), -worth))  # NaN last

    def kept(self, z, cutoff):
        return z >= cutoff

    def is_law(self, score, log_norm):
        return score < INF and not math.isnan(log_norm)

    def log_p(self, z, scale, cutoff, log_norm, top):
        if math.isinf(scale):
            return np.where(np.arange(len(z)) == log_norm, 0.0, -INF)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.where(self.kept(z, cutoff), (z - top) * scale - log_norm, -INF)

    def present(self, n, num_rows):
        return num_rows is None or n < num_rows

    def __call__(self, rows, score, w, *, num_rows=None):
        logits, stats = rows.logits, rows.stats
        scores, ids = np.zeros((len(logits), w), dtype=np.float32), np.full((len(logits), w), -1)
        for n in range(len(logits)):
            if not self.present(n, num_rows):
                continue
            z, own = logits[n].double().numpy(), float(score[n])
            floats = stats[n].double().tolist()
            law = self.is_law(own, floats[2])
            worth = self.worth(own, self.log_p(z, *floats)) if law else np.full(len(z), NAN, np.float32)
            ids[n] = self.order(z, worth)[:w]
            scores[n] = worth[ids[n]]
        return torch.from_numpy(scores), torch.from_numpy(ids)


def compare(function, *args, **kwargs):
    """Check that a function's results equal Sorted's, bit for bit."""
    got, want = function(*args, **kwargs), Sorted()(*args, **kwargs)
    assert got[1].shape == want[1].shape and torch.equal(got[1], want[1]), f"ids: {got[1]}, {want[1]}"
    assert torch.equal(got[0].nan_to_num(7.0), want[0].nan_to_num(7.0)), f"scores: {got[0]}, {want[0]}"
    return got


def some_scores(n, seed=1):
    """Return scores of new beams, and of beams so long that many ids tie."""
    few = torch.tensor([0.0, -1.5, FLAT, -123.456, -1e6, -40.0, -0.0])
    return few[(torch.arange(n) + seed) % len(few)]


def some_w(V, backend):
    few = {min(V, 4), V}
    return sorted(few if backends.BACKENDS[backend].slower > 1 else few | {0, min(V, 1), min(V, 300)})


# ---- the checks of a function. take(n, least): how many of n inputs a check takes, at least `least` -----------------


def check_rounded(function, take):
    """Logits whose differences are lost when score + ln p is rounded. Sorting by logits would give other ids in every
    row."""
    rng = torch.Generator().manual_seed(3)
    n = take(24, 6)
    z = 2e-4 * torch.rand(n, 1500, generator=rng)
    z[:, ::3] -= 1.0
    for w in (1, 4, 700):
        got = compare(function, sk.Rows(z, stats=sk.row_stats(z)), torch.full((n,), FLAT), w)
        assert (got[1] != z.topk(w).indices).any(1).all()


def check_ties(function, take):
    """Few values, so that ids decide nearly every place of the order."""
    rng = torch.Generator().manual_seed(2)
    for levels in (1, 2, 7):
        z = torch.randint(0, levels, (take(12, 2), 2100), generator=rng).float()
        for w in (1, 40, 2100):
            compare(function, sk.Rows(z, stats=sk.row_stats(z)), some_scores(len(z)), w)


def check_coarse_scores(function, take):
    """Scores so large that adding ln p changes nothing: the lowest ids win, and -inf comes last."""
    z = 3 * torch.randn(3, 5000, generator=torch.Generator().manual_seed(8))
    z[:, 2:4990:7] = -INF
    got = compare(function, sk.Rows(z, stats=sk.row_stats(z)), torch.tensor([-1e30, 1e9, -3e38]), 6)
    assert got[1].tolist() == [[0, 1, 3, 4, 5, 6]] * 3
    compare(function, sk.Rows(z, stats=sk.row_stats(z)), torch.tensor([-1e30, 1e9, -3e38]), 5000)


def check_ascending(function, take):
    """Every logit is larger than those before it, by less than a rounding of the score or by more."""
    for step in (1e-5, 1e-3):
        z = torch.arange(4 * 1024 + 9, dtype=torch.float32)[None] * step
        z = z.expand(2, -1).contiguous()
        compare(function, sk.Rows(z, stats=sk.row_stats(z)), torch.tensor([FLAT, -1.0]), 5)


def check_other_laws(function, take):
    """Rows with a temperature or a cutoff, and greedy rows, whose only possible id comes first."""
    n = take(28, 4)
    z, _ = cases.rows_pair(3, n, 257)
    for params in ({"top_k": 5}, {"top_p": 0.6, "temperature": 0.5}, {"min_p": 0.2}, {"temperature": 0.0}):
        got = compare(function, sk.Rows(z, stats=sk.row_stats(sk.Rows(z, **params))), some_scores(n), 257)
        assert (got[0] == -INF).any() and (got[1].sort(1).values == torch.arange(257)).all()


def check_dead_beams(function, take):
    """-inf is the score of an absent beam. NaN and +inf are invalid scores."""
    z = torch.randn(4, 1100, generator=torch.Generator().manual_seed(5))
    score = torch.tensor([-INF, NAN, INF, -2.0])
    for params in ({}, {"temperature": 0.0}):
        got = compare(function, sk.Rows(z, stats=sk.row_stats(sk.Rows(z, **params))), score, 3)
        assert got[1][:3].tolist() == [[0, 1, 2]] * 3 and (got[0][0] == -INF).all() and got[0][1:3].isnan().all()


def check_no_law(function, take):
    """Rows with NaN, +inf or nothing finite give NaN for every score, and ids in the vocabulary. Other rows stay the
    same."""
    z = torch.randn(5, 1100, generator=torch.Generator().manual_seed(4))
    good = z.clone()
    z[1, 7], z[1, 1050] = NAN, INF
    z[2] = NAN
    z[3] = -INF
    z[4, 1:] = -INF
    score = some_scores(5)
    for w in (3, 1100):
        got = compare(function, sk.Rows(z, stats=sk.row_stats(z)), score, w)
        alone = function(sk.Rows(good, stats=sk.row_stats(good)), score, w)
        assert all(torch.equal(a[:1], b[:1]) for a, b in zip(got, alone))
        assert got[0][1:4].isnan().all() and got[1][1].tolist() == list(range(w)) and not got[0][4].isnan().any()


def check_foreign_stats(function, take):
    """With stats of another row, a NaN logit has probability 0, and every id lies in the vocabulary."""
    z = torch.randn(6, 3000, generator=torch.Generator().manual_seed(6))
    stats = sk.row_stats(z)
    z[0, ::2], z[1, 1024:2048], z[2] = NAN, NAN, -INF
    stats[3, 0], stats[4, 1], stats[5, 2] = -1.0, NAN, INF
    got = function(sk.Rows(z, stats=stats), some_scores(6), 5)
    assert ((got[1] >= 0) & (got[1] < 3000)).all()
    compare(function, sk.Rows(z[:3], stats=stats[:3]), some_scores(6)[:3], 2000)


def check_padding(function, take):
    """Rows from num_rows on are absent, whatever they hold."""
    z = torch.randn(4, 1030, generator=torch.Generator().manual_seed(6))
    for n in (0, 2, 4, 9, -1):
        there = max(n, 0)
        rows, score, stats = z.clone(), some_scores(4), sk.row_stats(z)
        rows[there:], score[there:], stats[there:] = NAN, NAN, NAN
        for dtype in (torch.int32, torch.int64):
            got = compare(function, sk.Rows(rows, stats=stats), score, 3, num_rows=torch.tensor([n], dtype=dtype))
            assert (got[1][there:] == -1).all() and not got[0][there:].any()


CHECKS = {name.removeprefix("check_"): f for name, f in list(globals().items()) if name.startswith("check_")}


class ByLogit(Sorted):
    def order(self, z, worth):
        return np.lexsort((np.arange(len(z)), -z))


class ByFloat64(Sorted):
    def worth(self, score, log_p):
        with np.errstate(over="ignore", invalid="ignore"):
            return score + log_p


class RoundedTwice(Sorted):
    def worth(self, score, log_p):
        with np.errstate(over="ignore", invalid="ignore"):
            return np.float32(score) + np.float32(log_p)


class HighestId(Sorted):
    def order(self, z, worth):
        return np.lexsort((-np.arange(len(z)), -worth))


class NoScore(Sorted):
    def worth(self, score, log_p):
        return super().worth(0.0, log_p)


class NoCutoff(Sorted):
    def kept(self, z, cutoff):
        return z == z


class AnyScore(Sorted):
    def is_law(self, score, log_norm):
        return not math.isnan(log_norm)


class BadLaws(Sorted):
    def is_law(self, score, log_norm):
        return score < INF


class NoPadding(Sorted):
    def present(self, n, num_rows):
        return True


WRONG = [ByLogit, ByFloat64, RoundedTwice, HighestId, NoScore, NoCutoff, AnyScore, BadLaws, NoPadding]


@pytest.mark.parametrize("check", CHECKS)
def test_order(backend, check):
    CHECKS[check](backends.call("row_topw", backend), lambda n, least: scale(n, backend, least))


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.one_backend
def test_wrong_versions_are_caught(wrong):
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
    for w in some_w(V, isa_backend):
        compare(backends.call("row_topw", isa_backend), sk.Rows(z, stats=sk.row_stats(z)), some_scores(n, w), w)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_begin_anywhere(isa_backend, dtype):
    wide = torch.randn(3, 2100, generator=torch.Generator().manual_seed(7)).to(dtype)
    for rows in (wide[:, 1:2050], wide[::2, 7:1032], wide[:1].expand(3, 2100), wide[:, 16:2064]):
        score = some_scores(2 * len(rows))[::2]
        compare(backends.call("row_topw", isa_backend), sk.Rows(rows, stats=sk.row_stats(rows)), score, 9)


@pytest.mark.parametrize("dtype", DTYPES)
def test_stats_of_its_own(isa_backend, dtype):
    """The op's own stats equal row_stats on the same device. Scores differ from float64 only by their rounding and that
    of log_norm."""
    z, _ = cases.rows_pair(5, 14, 3001, dtype=dtype)
    score = some_scores(14)
    call = backends.call("row_topw", isa_backend)
    got = call(z, score, 20)
    again = call(z, score, 20, stats=backends.call("row_stats", isa_backend)(z))
    assert all(torch.equal(a, b) for a, b in zip(got, again))
    exact = score.double()[:, None] + z.double().log_softmax(1).gather(1, got.ids)
    bound = EPS * exact.abs() + SUM_EPS + EPS * math.log(3001)
    assert ((got.scores == exact) | ((got.scores - exact).abs() <= bound)).all() and exact.isfinite().any(1).all()


@pytest.mark.parametrize("w", [3, 13, 14, 4095, 4096, 4097, 9000])
def test_more_than_is_sorted_at_once(backend, w):
    """13 chunks: up to w = 13, the w best chunks bound the w best ids. A block sorts 4096 entries at once; in the last
    rows more than that tie."""
    V = 12 * 1024 + 77
    rng = torch.Generator().manual_seed(w)
    z = torch.randn(3, V, generator=rng)
    z[1] = z[1].sort().values  # the best all lie in the last chunk
    z[2] = torch.where(torch.rand(V, generator=rng) < 0.001, 1.0, 0.0)
    if backend == "triton-interpret":  # its kernels have no such limit
        z = z[:1] if w > 4096 else z[1:]
    compare(backends.call("row_topw", backend), sk.Rows(z, stats=sk.row_stats(z)), some_scores(len(z)), w)


def test_the_vocabulary_of_a_large_model():
    V = 151_936
    for dtype in DTYPES:
        z, _ = cases.rows_pair(8, 3, V, dtype=dtype, kinds=["peaked", "zeros", "near"])
        for w in (0, 1, 8, 64, 5000) if dtype == torch.float32 else (8, V):
            compare(sk.row_topw, sk.Rows(z, stats=sk.row_stats(z)), torch.tensor([-1.0, FLAT, -50.0]), w)


@pytest.mark.parametrize("T", [2.0**-120, 2.0**-10, 128.0, 2.0**100])
def test_scales(backend, T):
    """Sums beyond the range of float32, which are -inf, and logprobs that are all equal."""
    z = 300 * torch.randn(2, 70, generator=torch.Generator().manual_seed(1))
    z[1] /= 1e6
    compare(
        backends.call("row_topw", backend),
        sk.Rows(z, stats=sk.row_stats(sk.Rows(z, temperature=T))),
        some_scores(2),
        70,
    )


def test_against_the_reference(op_backend):
    """Results equal those of the shipped reference, which is written independently of Sorted."""
    z, _ = cases.rows_pair(9, 7, 300)
    stats, score = sk.row_stats(sk.Rows(z, top_k=200)), some_scores(7)
    got = backends.run("row_topw", op_backend, z, score, 250, stats=stats)
    want = reference(sk.Rows(z, stats=stats), score, 250)
    assert torch.equal(got.ids, want.ids) and torch.equal(got.scores, want.scores)


def test_dtypes_and_shapes(op_backend):
    z = torch.zeros(2, 5)
    got = backends.run("row_topw", op_backend, z, torch.zeros(2), 0)
    assert [x.dtype for x in got] == [torch.float32, torch.int64] and [list(x.shape) for x in got] == [[2, 0]] * 2
    got = backends.run("row_topw", op_backend, z[:0], torch.zeros(0), 3)
    assert [list(x.shape) for x in got] == [[0, 3]] * 2
    got = backends.run("row_topw", op_backend, torch.tensor([[4.0]]), torch.tensor([-2.5]), 1)
    assert got.scores.tolist() == [[-2.5]] and got.ids.tolist() == [[0]]


def test_errors():
    z, score = torch.zeros(2, 5), torch.zeros(2)
    stats = sk.row_stats(z)
    for args, options, error, message in [
        ((z[0], score, 1), {}, ValueError, r"rows.logits must have shape \[N, V\], got \[5\]"),
        ((z, None, 1), {}, TypeError, "score must be a torch.Tensor, got NoneType"),
        ((z, score.double(), 1), {}, ValueError, "score must be float32, got float64"),
        ((z, score[:1], 1), {}, ValueError, r"score must have shape \[N=2\], got \[1\]"),
        ((z, score, 6), {}, ValueError, r"w must be in \[0, V=5\], got 6"),
        ((z, score, -1), {}, ValueError, r"w must be in \[0, V=5\], got -1"),
        ((z, score, 0.5), {}, TypeError, "w must be an int, got float"),
        ((z, score, 1), {"stats": stats[:1]}, ValueError, r"rows.stats must have shape \[N=2, 4\], got \[1, 4\]"),
        ((z, score, 1), {"num_rows": torch.zeros(2).int()}, ValueError, r"num_rows must have shape \[1\], got \[2\]"),
        ((z, score, 1), {"num_rows": torch.zeros(1)}, ValueError, "num_rows must be int32 or int64, got float32"),
    ]:
        with pytest.raises(error, match="row_topw: " + message):
            flat.call(sk.row_topw, *args, **options)
