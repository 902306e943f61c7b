# SPDX-License-Identifier: Apache-2.0
"""Padded buffers, in which only the first rows or requests are there: of the others nothing is looked at."""

import torch


def present(number, n):
    """How many of n are there. number: [1], or None for all of them."""
    return n if number is None else min(max(int(number), 0), n)


def first(n, *values):
    """Of tensors the first n entries (of a tensor of one entry for all, that one); anything else as it is."""
    return [x[:n] if torch.is_tensor(x) and x.dim() else x for x in values]


def padded(x, n, value):
    """x with entries of `value` behind it, n in all."""
    return torch.cat([x, x.new_full((n - len(x), *x.shape[1:]), value)])
