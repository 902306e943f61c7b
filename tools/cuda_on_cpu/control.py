# SPDX-License-Identifier: Apache-2.0
"""The harness's controls for tests: the order in which threads run, and counts of what kernels read."""

import contextlib
import math
import os
from dataclasses import dataclass

import numpy as np

SCHEDULES = [("ascending", 1), ("descending", 1), ("interleaved", 1), ("random", 1), ("random", 2)]
BLOCK_ORDERS = [("ascending", 1), ("descending", 1), ("random", 1)]


@dataclass
class Count:
    """The bytes that kernels read from one argument.

    Rows are those of the last dimension; arrays have the shape of the dimensions before it. Rows that share their
    memory share their counts.
    """

    read: np.ndarray  # bytes, counted each time they are read
    distinct: np.ndarray  # bytes read at least once
    loads: dict  # width -> number of loads
    written: int
    outside: int  # bytes accessed between the rows, where no kernel may access any


def _default(variable):
    """Return the order and the seed in an environment variable: "random:7" is random with seed 7."""
    name, _, seed = os.environ.get(variable, "ascending").partition(":")
    return name, int(seed or 1)


@contextlib.contextmanager
def order(module, schedule=("ascending", 1), blocks=("ascending", 1)):
    """A context in which threads and blocks take their turns in this order. module: as returned by build.load()."""
    module.set_schedule(*schedule)
    module.set_block_order(*blocks)
    try:
        yield
    finally:
        module.set_schedule(*_default("SPECDEC_SCHEDULE"))
        module.set_block_order(*_default("SPECDEC_BLOCK_ORDER"))


def _row_addresses(x):
    """Return the address of each row of a CPU tensor or array [..., V], with shape [...], and the bytes of a row."""
    if hasattr(x, "data_ptr"):
        size, strides, base, item = tuple(x.shape), x.stride(), x.data_ptr(), x.element_size()
    else:
        size, strides, base, item = x.shape, [s // x.itemsize for s in x.strides], x.ctypes.data, x.itemsize
    if not size or (size[-1] > 1 and strides[-1] != 1):
        raise ValueError("only what has dense rows can be watched")
    rows = np.full(size[:-1], base, dtype=np.uint64)
    for dimension, stride in enumerate(strides[:-1]):
        steps = np.arange(size[dimension], dtype=np.uint64) * np.uint64(stride * item)
        rows += steps.reshape([-1 if d == dimension else 1 for d in range(len(size) - 1)])
    return rows, size[-1] * item


class Counting(dict):
    """Name -> Count of each watched argument, filled when the context ends. `launches` is [(kernel, blocks)]."""


@contextlib.contextmanager
def counting(module, **arguments):
    """A context that counts what kernels read of these arguments.

    with counting(load("checked"), target=logits) as counts: verify_chain(...)
    counts["target"].read is then [B, G + 1].
    """
    if not module.checked:
        raise ValueError("the fast flavour counts nothing")
    addresses = {}
    module.forget()
    for name, x in arguments.items():
        rows, row_bytes = _row_addresses(x)
        if math.prod(rows.shape) and row_bytes:
            module.watch(name, rows.ravel().tolist(), row_bytes)
            addresses[name] = rows
    module.reset()
    result = Counting()
    try:
        yield result
        for name, count in module.counts().items():
            rows = addresses[name]
            _, index = np.unique(rows, return_inverse=True)
            by_row = {k: np.array(count[k], dtype=np.int64)[index].reshape(rows.shape) for k in ("read", "distinct")}
            result[name] = Count(**by_row, loads=count["loads"], written=count["written"], outside=count["outside"])
        result.launches = module.launches()
    finally:
        module.forget()
