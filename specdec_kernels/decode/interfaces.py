# SPDX-License-Identifier: Apache-2.0
"""Checks of the types of targets, drafters and requests; error texts name the conversion that is missing."""

from collections.abc import Iterable
from typing import Any

import torch

from ..ops import _check
from .request import Request

__all__ = [
    "check_count",
    "check_drafter",
    "check_model",
    "check_no_views",
    "check_request",
    "check_requests",
    "check_target",
    "check_tokenizer",
    "wrap",
]

_MODEL = "vocab_size", "max_positions", "device", "new_cache", "forward"
_DRAFTER = "num_lookahead", "rules", "verifies", "begin", "admit", "propose"


def _has(x: object, names: Iterable[str]) -> bool:
    return not isinstance(x, type) and all(hasattr(x, name) for name in names)


def _shown(x: Any) -> str:
    return f"the class {x.__name__}" if isinstance(x, type) else _check.shown(x)


def wrap(x: Any, drafter: str) -> str:
    """Return the hint that ends an error text if a model was given in place of a drafter; "" if x is no model.

    drafter: the name of the class that makes a drafter of the model.
    """
    model = "model" if _has(x, _MODEL) else "decode.adapt(model)" if isinstance(x, torch.nn.Module) else None
    return "" if model is None else f": wrap it, decode.{drafter}({model})"


def check_model(op: str, name: str, x: Any) -> Any:
    """Return x if it has all attributes of a Model.

    Raises:
        TypeError: it does not.
    """
    if not _has(x, _MODEL):
        hint = ": wrap it, decode.adapt(model)" if isinstance(x, torch.nn.Module) else ""
        raise TypeError(f"{op}: {name} must be a decode.Model, got {_shown(x)}{hint}")
    return x


def check_target(op: str, x: Any) -> Any:
    """Return x if it can be a target: a Model whose logits cover all ids.

    Raises:
        TypeError: it is no Model.
        ValueError: its logits cover some ids only.
    """
    if getattr(check_model(op, "target", x), "vocab_map", None) is not None:
        raise ValueError(f"{op}: target must have logits for all its ids, got {type(x).__name__} with a vocab_map")
    return x


def check_drafter(op: str, name: str, x: Any) -> Any:
    """Return x if it has all attributes of a Drafter.

    Raises:
        TypeError: it does not.
    """
    if not _has(x, _DRAFTER):
        raise TypeError(f"{op}: {name} must be a decode.Drafter, got {_shown(x)}{wrap(x, 'ModelDrafter')}")
    return x


def check_tokenizer(op: str, x: Any) -> Any:
    """Return x if it is None or can decode ids."""
    if x is not None and not callable(getattr(x, "decode", None)):
        raise TypeError(f"{op}: tokenizer must have a method decode, got {_shown(x)}")
    return x


def check_request(op: str, name: str, x: Any) -> Request:
    if not isinstance(x, Request):
        raise TypeError(f"{op}: {name} must be a decode.Request, got {_check.shown(x)}")
    return x


def check_no_views(op: str, index: int, request: Request) -> None:
    """Raise ValueError if a request has penalties, biases or masks (Request.views)."""
    for name, value in request.views.items():
        raise ValueError(f"{op}: {name} must be off, request {index} has {_check.shown(value)}")


def check_requests(op: str, x: Any) -> list[Request]:
    """Return x as a list of at least one Request."""
    if isinstance(x, (Request, str, bytes, dict)) or not isinstance(x, Iterable):
        hint = ": write [request]" if isinstance(x, Request) else ""
        raise TypeError(f"{op}: requests must be a list of decode.Request, got {_shown(x)}{hint}")
    requests = [check_request(op, f"requests[{i}]", request) for i, request in enumerate(x)]
    if not requests:
        raise ValueError(f"{op}: requests must not be empty")
    return requests


def check_count(op: str, name: str, x: Any) -> int:
    """Return x if it is an int of at least 1; raise otherwise."""
    return _check.integer(op, name, x, 1, 1 << 62, ">= 1")
