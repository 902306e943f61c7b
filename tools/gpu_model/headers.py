# SPDX-License-Identifier: Apache-2.0
"""Numbers that the model needs from the kernels' headers. They are read from the files, so the two cannot differ."""

from __future__ import annotations

import functools
import re
from pathlib import Path

CSRC = Path(__file__).parents[2] / "csrc"


@functools.cache
def _text(file: str) -> str:
    return (CSRC / file).read_text()


def constant(file: str, name: str) -> int:
    """Return the value of `constexpr int name` in a header."""
    found = re.search(rf"constexpr int {name} = (\d+);", _text(file))
    if not found:
        raise LookupError(f"{file} has no `constexpr int {name} = <number>;`")
    return int(found[1])


@functools.cache
def steps(file: str, function: str) -> tuple[tuple[tuple[int, int], ...], int]:
    """Return the values of an inline function of a header: ((most, value), ...), and the last value.

    The function must be a chain of `<= 1 << bits ? value :`.
    """
    body = re.search(rf"inline int {function}\([^)]*\) {{(.*?)}}", _text(file), re.S)
    if not body:
        raise LookupError(f"{file} has no `inline int {function}(...)`")
    tests = re.findall(r"<= 1 << (\d+) \? (\d+) :", body[1])
    last = re.search(r": (\d+);\s*$", body[1])
    if not tests or not last:
        raise LookupError(f"{file}: {function} is no chain of `<= 1 << bits ? value :`")
    return tuple((1 << int(bits), int(value)) for bits, value in tests), int(last[1])


def step(file: str, function: str, at: int) -> int:
    """Return the value of such a function (see steps) at `at`."""
    tests, otherwise = steps(file, function)
    return next((value for most, value in tests if at <= most), otherwise)
