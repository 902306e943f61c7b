# SPDX-License-Identifier: Apache-2.0
"""The reference's results with a `margin`: how far the closest decision was from its opposite.

The unit of a margin is the error that a float32 evaluation may make in that decision. If margin > 1, an op must return
the reference's tokens. Below 1, both answers are right.

The rules run unchanged. Rows are Bands, which carry an error bound through arithmetic (band.py). If arithmetic on Bands
does not give the right bound, the reference's function is a @singledispatch function with a version for Bands here. The
chance objects record how close each decision was (walks.py).
"""

import math
from collections import namedtuple

import torch

from ..law import numpy_rows
from ..padded import padded, present
from ..row_stats import params_of_rows
from ..rows import first_sampling, rows_of
from ..sample import sample as plain_sample
from ..verify_chain import verify_chain as plain_chain
from ..verify_tree import verify_tree as plain_tree
from ..views import seen_rows
from .walks import GivenUniforms, filters_margin

__all__ = ["sample", "verify_chain", "verify_tree"]

# The reference's results with margin: [B] or [N] float64
Verified = namedtuple("Verified", "tokens num_accepted logprobs status margin")
VerifiedTree = namedtuple("VerifiedTree", "tokens num_accepted logprobs status path margin")
Sampled = namedtuple("Sampled", "tokens logprobs rows margin")


def verify_chain(*args, **kwargs):
    return Verified(*with_margins(plain_chain, *args, **kwargs))


def verify_tree(*args, **kwargs):
    return VerifiedTree(*with_margins(plain_tree, *args, **kwargs))


def sample(rows, *args, **kwargs):
    """Run the reference's sample. The margin is that of the draws and, if stats are not given, of the filters."""
    *out, margins = with_margins(plain_sample, rows, *args, **kwargs)
    rows = rows_of(rows, draft=True)
    N, n = len(rows.logits), present(kwargs.get("num_rows"), len(rows.logits))
    rows = seen_rows(rows, n)
    filters = [math.inf] * n
    if rows.stats is None:
        params = params_of_rows(n, *first_sampling(rows, n))
        filters = [filters_margin(z, *each) for z, each in zip(numpy_rows(rows.logits[:n]), params)]
    filters = torch.tensor(filters, dtype=torch.float64, device="cpu")
    nearest = torch.cat([margins.reshape(n, out[0].shape[1]), filters[:, None]], 1).amin(1)
    return Sampled(*out, padded(nearest, N, math.inf))


def with_margins(op, *args, **kwargs):
    """Return the fields of the op's result, and the margins of all chance objects made for it, in their order."""
    made = []

    class Noted(GivenUniforms):
        def __init__(self, *uniforms):
            super().__init__(*uniforms)
            made.append(self)

    out = op(*args, **kwargs, chance_type=Noted)
    return *out, torch.tensor([chance.margin for chance in made], dtype=torch.float64, device="cpu")
