# SPDX-License-Identifier: Apache-2.0
"""Seeds of any size as the 64 bits that the ops take."""

__all__ = ["signed"]

_WORD = 1 << 64
_LARGEST = (1 << 63) - 1


def signed(number: int) -> int:
    """The low 64 bits of a number, as a signed one."""
    number %= _WORD
    return number - _WORD if number > _LARGEST else number
