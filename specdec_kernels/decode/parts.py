# SPDX-License-Identifier: Apache-2.0
"""Iteration over a drafter's parts: model runners and other drafters."""

from collections.abc import Iterator
from typing import Any

__all__ = ["parts_of"]


def parts_of(drafter: Any) -> Iterator[Any]:
    """Yield the drafter and, recursively, its parts."""
    yield drafter
    for part in getattr(drafter, "parts", ()):
        yield from parts_of(part)
