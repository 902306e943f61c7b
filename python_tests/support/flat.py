# SPDX-License-Identifier: Apache-2.0
"""Calls as flat dicts, so that tests can vary single fields of Rows.

Each field of a side has its own name, as in the schema (target_logits, draft_temperature). Sampling parameters
without a side (temperature) are the target's. folded() turns such a call into one with Rows, which public functions and
the reference take.
"""

import functools
import inspect

import specdec_kernels
from specdec_kernels import example_calls
from specdec_kernels.arguments import TABLE, sides
from specdec_kernels.registry import SAMPLING
from specdec_kernels.rows import Rows

FIELDS = (*SAMPLING, "stats", "kind", "row", "penalties", "bias", "allowed", "ids", "vocab_map")
SIDES = {  # op: the place of each of its sides among the parameters
    op: {side: list(inspect.signature(getattr(specdec_kernels, op)).parameters).index(side) for side in sides(op)}
    for op in TABLE
    if sides(op)
}


def names_of(op: str, side: str) -> dict[str, str]:
    """Return the flat names of a side's fields."""
    if side == "rows":
        return {"logits": "logits"} | {field: field for field in FIELDS}
    if side in ("p", "q"):
        return {"kind": "kind"} | {field: f"{side}_{field}" for field in ("stats", "ids", "vocab_map")}
    alone = {field: field for field in SAMPLING} if side == "target" else {}
    return {field: f"{side}_{field}" for field in ("logits", *FIELDS)} | alone


def folded(op: str, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Return the same call with Rows. A side given as Rows or as a tensor stays, except for fields given separately."""
    if op not in SIDES:
        return args, kwargs
    args, kwargs, found = list(args), dict(kwargs), {}
    for side in SIDES[op]:
        flat = {field: name for field, name in names_of(op, side).items() if name in kwargs}
        found[side] = {field: kwargs[name] for field, name in flat.items()}
    for names in (names_of(op, side) for side in SIDES[op]):
        for name in names.values():
            kwargs.pop(name, None)
    for side, at in SIDES[op].items():
        fields = {field: x for field, x in found[side].items() if x is not None}
        if "logits" in found[side]:
            given = found[side]["logits"]
            kwargs[side] = given if given is None or len(fields) == 1 else Rows(**fields)
        elif fields:
            place, key = (args, at) if at < len(args) else (kwargs, side)
            place[key] = place[key]._replace(**fields) if isinstance(place[key], Rows) else Rows(place[key], **fields)
    return tuple(args), kwargs


def call(function, *args, **kwargs):
    """Call a public function, or one of the reference, with a flat call."""
    op = function.args[0] if isinstance(function, functools.partial) else function.__name__
    args, kwargs = folded(op, args, kwargs)
    return function(*args, **kwargs)


def dotted(op: str, arguments: dict) -> dict:
    """Return the arguments of an op's public function by field: "target.logits", "target.temperature" and so on.

    It makes no difference whether a side is given as Rows or as a tensor. Tests that visit all arguments use this.
    """
    found = {}
    for name, x in arguments.items():
        if name not in SIDES.get(op, ()) or x is None:
            found[name] = x
            continue
        given = (x if isinstance(x, Rows) else Rows(x))._asdict()
        found |= {f"{name}.{field}": y for field, y in given.items() if y is not Rows._field_defaults.get(field, ...)}
    return found


def dotted_calls(op: str, few=False, **inputs) -> list:
    """Return an op's example calls by field."""
    calls = (example_calls.few if few else example_calls.calls)(op, **inputs)
    return [call._replace(arguments=dotted(op, call.arguments)) for call in calls]


def call_dotted(op: str, arguments: dict):
    """Call the public function with arguments by field."""
    return getattr(specdec_kernels, op)(**example_calls.folded(arguments))


def dotted_names(op: str) -> list[str]:
    """Return the parameters of a public function, with each field of its sides."""
    names = inspect.signature(getattr(specdec_kernels, op)).parameters
    return [
        f"{name}.{field}" if field else name
        for name in names
        for field in (Rows._fields if name in SIDES.get(op, ()) else ("",))
    ]


def flattened(op: str, arguments: dict) -> dict:
    """Return a call with Rows as a flat one: the inverse of folded()."""
    found = dict(arguments)
    for side in SIDES.get(op, ()):
        x = found.pop(side, None)
        names = {"logits": side} | names_of(op, side)
        if x is None:
            found |= {names["logits"]: None} if side in arguments else {}
            continue
        given = (x if isinstance(x, Rows) else Rows(x))._asdict()
        found |= {names[field]: y for field, y in given.items() if y is not Rows._field_defaults.get(field, ...)}
    return found


def of(op: str, function):
    """Wrap a function that takes Rows (a public function or a replacement), so that it takes flat calls."""

    def call_flat(*args, **kwargs):
        args, kwargs = folded(op, args, kwargs)
        return function(*args, **kwargs)

    return call_flat
