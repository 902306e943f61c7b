# SPDX-License-Identifier: Apache-2.0
"""Where positions find their rows, if these do not lie in the order of the positions (csrc/core/rows.h)."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .memory import get_value


class Store(NamedTuple):
    """Row n of [S, K, V] is [n // K, n % K]; what lies outside [0, N) is no row."""

    row: Any  # [positions]; None: there is none
    N: Any
    K: Any  # None: of [N, V]
    OF_POSITIONS: Any  # whether the side's stats are those of positions, and not of the store's rows


@triton.jit
def number_of(store, index, there):
    """The number of a position's row, -1 where a position is not `there`."""
    return get_value(store.row + index, there, -1).to(tl.int64)


@triton.jit
def names_row(store, number):
    return (number >= 0) & (number < store.N)
