# SPDX-License-Identifier: Apache-2.0
"""Checks of row_stats against the float64 reference."""

import math

import torch
from support import backends, flat
from support.checks import assert_floats

from specdec_kernels import reference, registry
from specdec_kernels.reference.banded.walks import filters_margin
from specdec_kernels.reference.row_stats import params_of_rows


def torch_log_norm_error(z, want):
    """Return the error of float32 logsumexp relative to the maximum, on the same rows and the same kept sets."""
    scale, cutoff, log_norm, top = want.unbind(-1)
    usable = log_norm.isfinite() & scale.isfinite()
    x = (z.float() - top[:, None].float()) * scale[:, None].float()
    naive = torch.logsumexp(x.masked_fill(z.double() < cutoff[:, None], -math.inf), -1)
    return (naive.double() - log_norm)[usable].abs().max().item() if usable.any() else 0.0


def kept(z, stats):
    return z.double() >= stats[:, 1:2].double()


def assert_stats(backend, z, **params):
    filters = params_of_rows(len(z), *(params.get(k) for k in registry.SAMPLING))
    margins = [filters_margin(row, *each) for row, each in zip(z.double().numpy(), filters)]
    want, clear = flat.call(reference.row_stats, z, **params), torch.tensor(margins) > 1
    got = backends.run("row_stats", backend, z, **params)
    assert got.shape == (len(z), 4)
    rows = clear & ~want[:, 2].isnan()
    for column, name in ((0, "scale"), (3, "max")):  # exact: 1/T, rounded once, and a logit
        assert torch.equal(got[:, column].double(), want[:, column]), f"{name} {params}"
    # Any cutoff between the same two logits gives the same distribution, so the kept sets are compared.
    wrong = ((kept(z, got) != kept(z, want)).any(-1) & rows).nonzero()[:, 0].tolist()
    assert not wrong, f"row {wrong[0]}: cutoff {got[wrong[0], 1]:.9g}, wanted {want[wrong[0], 1]:.9g} {params}"
    assert got[rows, 1].isfinite().all()
    assert (clear.double().mean() > 0.97) or len(z) < 50
    assert_floats(got[clear, 2], want[clear, 2], torch_log_norm_error(z, want), f"log_norm {params}")
    return got
