# SPDX-License-Identifier: Apache-2.0
"""The reference's answers with a `margin`: how far the nearest decision was from going the other way, in units of the
error that a float32 evaluation may make there. Where margin > 1 an op must give the reference's tokens; below 1 both
answers are right.

The rules run unchanged. Rows are Bands, which carry an error bound through arithmetic (band.py). Where the bound is not
that of the arithmetic, the reference's function is under @singledispatch and has a version for Bands here. The coins
record how near each decision was (walks.py).
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
from .walks import Coins, top_p_margin

__all__ = ["sample", "verify_chain", "verify_tree"]

# As the reference's, with margin: [B] or [N] float64
Verified = namedtuple("Verified", "tokens num_accepted logprobs status margin")
VerifiedTree = namedtuple("VerifiedTree", "tokens num_accepted logprobs status path margin")
Sampled = namedtuple("Sampled", "tokens logprobs rows margin")


def verify_chain(*args, **kwargs):
    return Verified(*with_margins(plain_chain, *args, **kwargs))


def verify_tree(*args, **kwargs):
    return VerifiedTree(*with_margins(plain_tree, *args, **kwargs))


def sample(rows, *args, **kwargs):
    """The margin is that of the draws and, without stats, of the top-p cutoff."""
    *out, margins = with_margins(plain_sample, rows, *args, **kwargs)
    rows = rows_of(rows)
    N, n = len(rows.logits), present(kwargs.get("num_rows"), len(rows.logits))
    filters = [math.inf] * n
    if rows.stats is None:
        params = params_of_rows(n, *first_sampling(rows, n))
        filters = [top_p_margin(z, *each) for z, each in zip(numpy_rows(rows.logits[:n]), params)]
    filters = torch.tensor(filters, dtype=torch.float64, device="cpu")
    nearest = torch.cat([margins.reshape(n, out[0].shape[1]), filters[:, None]], 1).amin(1)
    return Sampled(*out, padded(nearest, N, math.inf))


def with_margins(op, *args, **kwargs):
    """Returns the fields of the op's result, and the margins of all coins made for it, in their order."""
    made = []

    class Noted(Coins):
        def __init__(self, *uniforms):
            super().__init__(*uniforms)
            made.append(self)

    out = op(*args, **kwargs, coins=Noted)
    return *out, torch.tensor([coins.margin for coins in made], dtype=torch.float64, device="cpu")
