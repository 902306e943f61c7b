# SPDX-License-Identifier: Apache-2.0
"""Parsers of option values for argparse. Each returns the value, or raises an error that states what was wanted."""

import argparse
import json
import re
import sys
from pathlib import Path

from specdec_kernels.registry import FLT_MAX, INF, PENALTIES, RULES, SAMPLING

__all__ = [
    "alpha",
    "device",
    "gamma",
    "grammar",
    "integer",
    "logit_bias",
    "number",
    "prompt",
    "prompt_file",
    "rule",
    "sampling",
    "text",
    "widths",
]


def _wrong(wanted: str, got: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"must be {wanted}, got {got if got.strip() else repr(got)}")


def number(given: str, kind, wanted: str):
    """Parse an int or a float (`kind`). wanted: what was wanted in words, for the error."""
    try:
        return kind(given)
    except ValueError:
        raise _wrong(wanted, given) from None


def integer(low: int, wanted: str):
    """Return a parser of integers of at least `low`. wanted: the same in words, for the error."""

    def parse(given: str) -> int:
        if (value := number(given, int, wanted)) < low:
            raise _wrong(wanted, given)
        return value

    return parse


def seed(given: str) -> int:
    return number(given, int, "an integer")


def sampling(name: str):
    """Return a parser of this sampling parameter or penalty, which checks its range."""
    ranges = SAMPLING | PENALTIES
    integral = name == "top_k"

    def parse(given: str):
        value = number(given, int if integral else float, "an integer" if integral else "a number")
        if value not in ranges[name]:
            raise _wrong(ranges[name].says, given)
        return value

    return parse


def logit_bias(given: str) -> tuple[int, float]:
    """Parse ID=VALUE."""
    wanted = "ID=VALUE, an id >= 0 and a number that is finite in float32 or -inf"
    token, _, value = given.partition("=")
    try:
        found = int(token), float(value)
    except ValueError:
        raise _wrong(wanted, given) from None
    if found[0] < 0 or not (found[1] == -INF or -FLT_MAX <= found[1] <= FLT_MAX):
        raise _wrong(wanted, given)
    return found


def text(given: str) -> str:
    if not given:
        raise _wrong("a text of at least one character", given)
    return given


def prompt(given: str) -> str:
    """Return the text itself, or standard input for "-"."""
    return text(_read(given)) if given == "-" else text(given)


def prompt_file(given: str) -> list[str]:
    """Return a file's text without the newline at its end, or the prompt of each line of a .jsonl file."""
    read = _read(given)
    if not given.endswith(".jsonl"):
        return [text(read)]
    prompts = [_of_line(given, i, line) for i, line in enumerate(read.split("\n"), 1) if line.strip()]
    if not prompts:
        raise _wrong("a file with at least one prompt", given)
    return prompts


def _read(name: str) -> str:
    try:
        if name == "-":
            if sys.stdin.isatty():
                print("the prompt, ended by Ctrl-D:", file=sys.stderr)
            read = sys.stdin.read()
        else:
            read = Path(name).read_text("utf-8")
    except UnicodeDecodeError:
        raise _wrong("text in UTF-8", name) from None
    except OSError as error:
        raise _wrong("a file that can be read", f"{name}: {error.strerror}") from None
    return read.removesuffix("\n")


def _of_line(name: str, i: int, line: str) -> str:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    found = found.get("prompt") if isinstance(found, dict) else found
    if not isinstance(found, str) or not found:
        raise _wrong('a file whose lines are strings or {"prompt": ...}', f"{name} with line {i}: {line:.40}")
    return found


def grammar(given: str) -> tuple[str, str]:
    """Return the kind and the text of the grammar in a file: a JSON schema (.json) or a regular expression."""
    return "JSON schema" if given.endswith(".json") else "regular expression", text(_read(given))


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
    """Parse a number, a pair, or nothing (None)."""
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
