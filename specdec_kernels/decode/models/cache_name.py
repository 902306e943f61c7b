# SPDX-License-Identifier: Apache-2.0
"""The name of a transformers model's cache argument, and the arguments that its forward takes."""

import inspect
from collections.abc import Callable

__all__ = ["arguments", "cache_name"]

_NAMES = ("cache", "past_key_values")  # from transformers 5.24 on, and before that


def cache_name(model) -> str:
    """Return the name of the cache, as an argument of `model.forward` and as a field of its result.

    A forward that only passes its arguments on (peft's, a subclass's) uses the name of the model inside.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else getattr(model, "base_model", None)
    found = (name for part in (model, inner) if part is not None for name in _NAMES if name in _parameters(part))
    return next(found, _NAMES[-1])


def arguments(model) -> Callable[[str], bool]:
    """Return a function: name -> whether `model.forward` takes an argument of that name."""
    known = _parameters(model)
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    return lambda name: takes_all or name in known


def _parameters(model):
    return inspect.signature(model.forward).parameters
