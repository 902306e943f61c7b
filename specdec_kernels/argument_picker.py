# SPDX-License-Identifier: Apache-2.0
"""Selection of an op's arguments by their names in the table of arguments, for fakes and Triton's functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import itemgetter

from specdec_kernels.arguments import taken


def picker(op: str, names: Iterable[str | tuple[str, ...]]) -> Callable[[tuple], tuple]:
    """Return a function that picks the named arguments, in this order, from those of a call of the op.

    Arguments that are missing at the end of the call get their defaults. A tuple of names picks a tuple of arguments;
    the names must be adjacent in the table."""
    known, defaults = [x.name for x in taken(op)], tuple(x.default for x in taken(op))

    def place(name):
        if isinstance(name, str):
            return known.index(name)
        first = known.index(name[0])
        if tuple(known[first : first + len(name)]) != name:
            raise ValueError(f"{op}: {', '.join(name)} must follow one another in the table of arguments")
        return slice(first, first + len(name))

    places = [place(name) for name in names]
    if len(places) == 1:  # an itemgetter of one index returns no tuple
        places = [slice(places[0], places[0] + 1)]
    get = itemgetter(*places)
    return lambda given: get(given + defaults[len(given) :])
