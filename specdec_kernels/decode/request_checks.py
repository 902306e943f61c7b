# SPDX-License-Identifier: Apache-2.0
"""Checks of a request's fields. Each returns the value to store, with numbers and sequences as plain Python types."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..ops import _check
from ..registry import FLT_MAX, INF, PENALTIES, RULES, SAMPLING
from ..seeds import signed

__all__ = ["CHECKS", "LOGPROBS_MODES"]

LOGPROBS_MODES = "raw", "processed"
_RANGES = SAMPLING | PENALTIES


def _shown(x: object) -> str:
    shape = getattr(x, "shape", ())
    return f"a {type(x).__name__} of shape {list(shape)}" if len(shape) else _check.shown(x)


def _fail(kind: type[Exception], name: str, wanted: str, got: str):
    raise kind(f"Request: {name} must be {wanted}, got {got}")


def _plain(x: Any) -> Any:
    """Return the Python number of a numpy scalar or of a tensor without dimensions; anything else unchanged."""
    return x.item() if getattr(x, "shape", None) == () and hasattr(x, "item") else x


def _is(x: object, *kinds: type) -> bool:
    """Return whether x is of one of these types; a bool is not a number."""
    return isinstance(x, kinds) and not isinstance(x, bool)


def _items(name: str, wanted: str, x: Any) -> list:
    """Return the entries of a sequence or of a tensor [n]. Strings, mappings and other tensors are refused."""
    shape = getattr(x, "shape", None)
    if shape is not None and len(shape) == 1 and hasattr(x, "tolist"):
        return x.tolist()
    if shape is not None or not isinstance(x, Sequence) or isinstance(x, (str, bytes, bytearray, memoryview)):
        _fail(TypeError, name, wanted, _shown(x))
    return list(x)


def _ids(name: str, x: Any, wanted: str) -> list[int]:
    ids = []
    for i, given in enumerate(_items(name, wanted, x)):
        token = _plain(given)
        if not _is(token, int):
            _fail(TypeError, name, wanted, f"{_shown(given)} at index {i}")
        if token < 0:
            _fail(ValueError, name, f"{wanted}, each >= 0", f"{token} at index {i}")
        ids.append(int(token))
    return ids


def _hint(prompt: Any) -> str:
    """Return the end of an error text: how to turn a text or a batch of one prompt into a list of ids."""
    if isinstance(prompt, str):
        return ": encode it, tokenizer.encode(text)"
    if isinstance(prompt, Mapping):
        return ": write prompt['input_ids']"
    shape: tuple[int, ...] = getattr(prompt, "shape", ())
    nested = isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list)
    return ": write prompt[0]" if nested or (len(shape) == 2 and shape[0] == 1) else ""


def _prompt(name: str, x: Any) -> list[int]:
    if hint := _hint(x):
        _fail(TypeError, name, "a list of token ids", _shown(x) + hint)
    ids = _ids(name, x, "a list of token ids")
    if not ids:
        raise ValueError("Request: prompt must have at least one token, got none")
    return ids


def _eos(name: str, x: Any) -> tuple[int, ...]:
    if _is(_plain(x), int):
        _fail(TypeError, name, "a tuple of token ids", f"{x}: write ({x},)")
    return tuple(_ids(name, x, "a tuple of token ids"))


def _strings(name: str, x: Any) -> tuple[str, ...]:
    wanted = "a tuple of strings"
    if isinstance(x, str):
        _fail(TypeError, name, wanted, f"{x!r:.80}: write ({x!r:.80},)")
    strings = _items(name, wanted, x)
    for i, string in enumerate(strings):
        if not isinstance(string, str):
            _fail(TypeError, name, wanted, f"{_shown(string)} at index {i}")
        if not string:
            _fail(ValueError, name, f"{wanted}, none of them empty", f"'' at index {i}")
    return tuple(map(str, strings))


def _integer(name: str, x: Any) -> int:
    number = _plain(x)
    if not _is(number, int):
        _fail(TypeError, name, "an int", _shown(x))
    return int(number)


def _count(name: str, x: Any) -> int:
    number = _integer(name, x)
    if number < 1:
        _fail(ValueError, name, ">= 1", _check.shown(number))
    return number


def _at_least_0(name: str, x: Any) -> int:
    number = _integer(name, x)
    if number < 0:
        _fail(ValueError, name, ">= 0", _check.shown(number))
    return number


def _number(name: str, x: Any) -> float:
    number = _plain(x)
    if not _is(number, int, float):
        _fail(TypeError, name, "a number", _shown(x))
    return number


def _parameter(name: str, x: Any) -> Any:
    """Return a sampling parameter or a penalty, checked against its range."""
    number = (_integer if name == "top_k" else _number)(name, x)
    if number not in _RANGES[name]:
        _fail(ValueError, name, _RANGES[name].says, _check.shown(number))
    return number if name == "top_k" else float(number)


def _bias(name: str, x: Any) -> dict[int, float] | None:
    """Return {id: value}; None if there is none."""
    wanted = "a dict {token id: number}"
    if x is None:
        return None
    if not isinstance(x, Mapping):
        _fail(TypeError, name, wanted, _shown(x))
    found = {}
    for key, given in x.items():
        token, value = _plain(key), _plain(given)
        if not _is(token, int) or not _is(value, int, float):
            _fail(TypeError, name, wanted, f"{_shown(key)}: {_shown(given)}")
        if token < 0 or not (value == -INF or -FLT_MAX <= value <= FLT_MAX):
            ids = f"{wanted}, ids >= 0, each number finite in float32 or -inf"
            _fail(ValueError, name, ids, f"{_shown(token)}: {_shown(value)}")
        found[int(token)] = float(value)
    return found or None


def _words(name: str, x: Any) -> tuple[tuple[int, ...], ...]:
    """Return the sequences of ids without duplicates."""
    wanted = "a tuple of sequences of token ids"
    words = []
    for i, given in enumerate(_items(name, wanted, x)):
        word = tuple(_ids(name, given, wanted))
        if not word:
            _fail(ValueError, name, f"{wanted}, none of them empty", f"{_check.shown(given)} at index {i}")
        words.append(word)
    return tuple(dict.fromkeys(words))


def _reported(name: str, x: Any) -> int | None:
    return None if x is None else _at_least_0(name, x)


def _mode(name: str, x: Any) -> str:
    if not isinstance(x, str) or x not in LOGPROBS_MODES:
        kind = ValueError if isinstance(x, str) else TypeError
        _fail(kind, name, " or ".join(map(repr, LOGPROBS_MODES)), _check.shown(x))
    return str(x)


def _seed(name: str, x: Any) -> int:
    return signed(_integer(name, x))


def _rule(name: str, x: Any) -> str:
    if not isinstance(x, str) or x not in RULES:
        kind = ValueError if isinstance(x, str) else TypeError
        _fail(kind, name, f"one of {', '.join(RULES)}", f"{x!r:.80}" if isinstance(x, str) else _shown(x))
    return str(x)


def _alpha(name: str, x: Any) -> Any:
    """Return None, a number or a pair; ranges are checked by the rule."""
    if x is None or _is(_plain(x), int, float):
        return _plain(x)
    wanted = "None, a number or a pair of numbers"
    pair = _items(name, wanted, x)
    for i, number in enumerate(pair):
        if not _is(_plain(number), int, float):
            _fail(TypeError, name, wanted, f"{_shown(number)} at index {i}")
    return tuple(map(_plain, pair))


def _allowed(name: str, x: Any) -> Any:
    if x is not None and not callable(x):
        _fail(TypeError, name, "a function of a list of token ids, or None", _shown(x))
    return x


CHECKS: dict[str, Callable[[str, Any], Any]] = {  # for every field of a Request: (name, given value) -> stored value
    "prompt": _prompt,
    "max_new_tokens": _count,
    **dict.fromkeys(_RANGES, _parameter),
    "seed": _seed,
    "eos": _eos,
    "stop": _strings,
    "rule": _rule,
    "alpha": _alpha,
    "logit_bias": _bias,
    "min_tokens": _at_least_0,
    "bad_words": _words,
    "allowed": _allowed,
    "logprobs": _reported,
    "logprobs_mode": _mode,
}
