# SPDX-License-Identifier: Apache-2.0
"""What an option's text must be: functions for argparse, each returning the value or raising what was wanted."""

import argparse
import re

from specdec_kernels.registry import RULES, SAMPLING

__all__ = ["alpha", "device", "gamma", "integer", "number", "rule", "sampling", "text", "widths"]


def _wrong(wanted: str, got: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"must be {wanted}, got {got if got.strip() else repr(got)}")


def number(given: str, kind, wanted: str):
    """The int or float that a text is."""
    try:
        return kind(given)
    except ValueError:
        raise _wrong(wanted, given) from None


def integer(low: int, wanted: str):
    """An integer of at least `low`, which `wanted` says in words."""

    def parse(given: str) -> int:
        if (value := number(given, int, wanted)) < low:
            raise _wrong(wanted, given)
        return value

    return parse


def seed(given: str) -> int:
    return number(given, int, "an integer")


def sampling(name: str):
    """A sampling parameter, in its range."""
    integral = name == "top_k"

    def parse(given: str):
        value = number(given, int if integral else float, "an integer" if integral else "a number")
        if value not in SAMPLING[name]:
            raise _wrong(SAMPLING[name].says, given)
        return value

    return parse


def text(given: str) -> str:
    if not given:
        raise _wrong("a text of at least one character", given)
    return given


def gamma(given: str) -> int | str:
    return given if given == "auto" else integer(1, 'an integer >= 1 or "auto"')(given)


def widths(given: str) -> list[int] | str | None:
    if not given or given == "auto":
        return given or None
    one = integer(1, '"auto" or integers >= 1 with commas between them')
    try:
        return [one(width) for width in given.split(",")]
    except argparse.ArgumentTypeError:
        raise _wrong('"auto" or integers >= 1 with commas between them', given) from None


def rule(given: str) -> str:
    if given not in RULES:
        raise _wrong(f"one of {', '.join(RULES)}", given)
    return given


def alpha(given: str) -> float | tuple[float, ...] | None:
    """None, a number or a pair."""
    wanted = "a number, or two with a comma between them"
    try:
        values = tuple(float(x) for x in given.split(",")) if given else (None,)
    except ValueError:
        raise _wrong(wanted, given) from None
    if len(values) > 2:
        raise _wrong(wanted, given)
    return values[0] if len(values) == 1 else values


def device(given: str) -> str:
    if not re.fullmatch(r"cpu|cuda(:\d+)?", given):
        raise _wrong('"cpu", "cuda" or "cuda:" and a number', given)
    return given
