# SPDX-License-Identifier: Apache-2.0
"""What a drafter is made of: models' runners and other drafters."""

from collections.abc import Iterator
from typing import Any

__all__ = ["parts_of"]


def parts_of(drafter: Any) -> Iterator[Any]:
    """The drafter and all that it is made of, however deep."""
    yield drafter
    for part in getattr(drafter, "parts", ()):
        yield from parts_of(part)
