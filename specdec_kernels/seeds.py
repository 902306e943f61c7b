# SPDX-License-Identifier: Apache-2.0
"""Conversion of seeds of any size to the signed 64 bits that the ops take."""

__all__ = ["signed"]

_WORD = 1 << 64
_LARGEST = (1 << 63) - 1


def signed(number: int) -> int:
    """Return the low 64 bits of a number as a signed integer."""
    number %= _WORD
    return number - _WORD if number > _LARGEST else number
