# SPDX-License-Identifier: Apache-2.0
"""Record of the session that a drafter serves. A drafter has one set of slots, so it serves one session at a time."""

from typing import Any
from weakref import ref

from .parts import parts_of

__all__ = ["check_served", "claim"]


def _session_of(part: Any) -> Any:
    """Return the session that the part serves; None if there is none any more."""
    return getattr(part, "serves", lambda: None)()


def claim(session: Any) -> None:
    """Make the session's drafter serve this session from now on.

    Raises:
        ValueError: the drafter, or a part of it, serves another session that has requests.
    """
    parts = [*parts_of(session.drafter)]
    for part in parts:
        if (other := _session_of(part)) is not None and other.busy:
            raise ValueError(
                f"{session.op}: drafter must not be in use, got {session.drafter.name}, whose {type(part).__name__} "
                "serves another run that has not ended: give each run a drafter of its own"
            )
    for part in parts:
        part.serves = ref(session)


def check_served(op: str, session: Any) -> None:
    """Raise ValueError if a later session has taken over the drafter."""
    if any(_session_of(part) is not session for part in parts_of(session.drafter)):
        raise ValueError(f"{op}: the session's drafter, {session.drafter.name}, serves a later session by now")
