# SPDX-License-Identifier: Apache-2.0
"""top-n-sigma: keep logits >= max - n * sigma, of a row's finite logits before the temperature.

test_row_stats.py and the tests of other ops test it together with the other filters."""

import math

import numpy as np
import pytest
import torch
from support import backends, flat, tiers
from support.stats_checks import assert_stats, kept
from support.surface import same, tensors

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


SIGMA = 0.860232526704  # the standard deviation of (2, 1, .5, -.5, 0)


@pytest.mark.parametrize("n, kept_ids", [(1, [0]), (2, [0, 1, 2]), (3, [0, 1, 2, 3, 4]), (0, [0, 1, 2, 3, 4])])
@pytest.mark.parametrize("temperature", [0.2, 1.0, 5.0])
def test_top_n_sigma_golden(backend, n, kept_ids, temperature):
    """Forbidden ids (-inf) and the temperature do not change which ids are kept."""
    z = torch.tensor([[2, 1, 0.5, -0.5, 0]])
    wide = torch.full((1, 2500), -math.inf)
    places = torch.tensor([2, 700, 1025, 1500, 2499])
    wide[0, places] = z[0]
    for row, ids in ((z, kept_ids), (wide, places[kept_ids].tolist())):
        got = backends.run("row_stats", backend, row, top_n_sigma=n, temperature=temperature)
        assert kept(row, got)[0].nonzero()[:, 0].tolist() == ids
        assert n == 0 or got[0, 1].item() == pytest.approx(2 - n * SIGMA, abs=2e-7)


def test_top_n_sigma_of_one_entry_and_of_equal_entries(backend):
    """sigma = 0, so the cutoff is the maximum, ties of which stay."""
    one, same = torch.full((1, 1100), -math.inf), torch.full((1, 1100), -7.3)
    one[0, 1050] = -3.0
    for z, count in ((one, 1), (same, 1100)):
        got = backends.run("row_stats", backend, z, top_n_sigma=1.5)
        assert kept(z, got).sum() == count and got[0, 1] == got[0, 3] == z.max()


def test_ties_at_the_cutoff_of_top_n_sigma(backend):
    """Half of the entries lie 2 sigma below the others. n = 2 keeps them; a little less does not."""
    z = torch.tensor([0.5, -1.5]).repeat(1, 700)
    less = math.nextafter(2, 0)  # 2 again when rounded to float32
    for n, count in ((2.0, 1400), (less, 1400), (1.9999998, 700)):
        assert kept(z, backends.run("row_stats", backend, z, top_n_sigma=n)).sum() == count


@pytest.mark.parametrize("dtype", DTYPES)
def test_top_n_sigma_at_the_ends_of_a_dtype(backend, dtype):
    """The largest finite numbers, where a difference in the row's dtype or in float32 overflows, and gaps of 300."""
    end = torch.finfo(dtype).max
    z = torch.zeros(4, 1030, dtype=torch.float32)
    z[0, ::2], z[0, 1::2] = end, -end
    z[1, 5], z[1, 1027] = end, -end
    z[2] = torch.where(torch.arange(1030) % 7 == 0, 0.0, -300.0)
    z[3] = torch.linspace(-300, 300, 1030)
    for n in (0.5, 1.0, 1.99, 3.0):
        assert_stats(backend, z.to(dtype), top_n_sigma=n)


def dropped(z, n):
    """Return the rows with -inf in place of what top-n-sigma removes, by definition."""
    e = z.double().numpy()
    finite = np.isfinite(e)
    count = np.maximum(finite.sum(-1, keepdims=True), 1)
    mean = np.where(finite, e, 0).sum(-1, keepdims=True) / count
    sigma = np.sqrt((np.where(finite, e - mean, 0) ** 2).sum(-1, keepdims=True) / count)
    least = (np.where(finite, e, -math.inf).max(-1, keepdims=True) - n * sigma).astype(np.float32)
    return torch.where(z < torch.tensor(least), -math.inf, z)


def ordinary(op, V):
    """Yield the example calls of exact verification on logits as they are: without rules, stats and views."""
    for name, arguments in flat.dotted_calls(op, V=V):
        given = {x.partition(".")[2] for x in arguments}
        if not given & {"stats", "kind", "penalties", "bias", "allowed"} and "rule" not in arguments:
            yield name, arguments


def with_rows(arguments, filters, change):
    """Return the call with these filters on each side that has rows, whose logits are changed."""
    out = dict(arguments)
    for side, n in (("target", 1.5), ("draft", 1.0)):
        if arguments.get(f"{side}.logits") is not None:
            out |= {f"{side}.{field}": x for field, x in filters(n).items()}
            out[f"{side}.logits"] = change(arguments[f"{side}.logits"], n)
    return out


@pytest.mark.parametrize("op", ["verify_chain", "verify_tree"])
def test_verification_is_that_of_rows_without_what_it_removes(op_backend, op):
    """Results equal those on rows with -inf in place of the removed entries, bit for bit, for the exact methods and the
    layouts of rows that the examples have. All calls also have a min-p that removes nothing, because a row without any
    filter is summed in another order."""
    calls = list(ordinary(op, 1030 if op_backend == "cpu" else 77))
    if op_backend != "cpu":
        calls = calls[:: 6 if op == "verify_tree" and tiers.TIER != "all" else 3]  # of each method two trees or more
    differs = 0
    for name, arguments in calls:
        as_it_is = with_rows(arguments, lambda n: {"min_p": 1e-30, "top_n_sigma": 0.0}, lambda z, n: z)
        filtered = with_rows(arguments, lambda n: {"min_p": 1e-30, "top_n_sigma": n}, lambda z, n: z)
        written = with_rows(arguments, lambda n: {"min_p": 1e-30, "top_n_sigma": None}, dropped)
        found, wanted = (tensors(backends.there(op_backend, flat.call_dotted, op, x)) for x in (filtered, written))
        assert same(found, wanted), name
        differs += not same(*(tensors(flat.call_dotted(op, x)) for x in (filtered, as_it_is)))
    assert differs > len(calls) / 3
