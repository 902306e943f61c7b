# SPDX-License-Identifier: Apache-2.0
"""Padded buffers. Only their first rows or requests are in use; the others are never read."""

import torch


def present(number, n):
    """Return how many of n entries are in use. number: [1], or None for all."""
    return n if number is None else min(max(int(number), 0), n)


def first(n, *values):
    """Return the first n entries of each tensor. Numbers, None and tensors of no dimension are unchanged."""
    return [x[:n] if torch.is_tensor(x) and x.dim() else x for x in values]


def padded(x, n, value):
    """Return x padded with entries of `value` to n entries."""
    return torch.cat([x, x.new_full((n - len(x), *x.shape[1:]), value)])
