# SPDX-License-Identifier: Apache-2.0
"""What a transformers model calls its cache, and which arguments its forward takes."""

import inspect
from collections.abc import Callable

__all__ = ["arguments", "cache_name"]

_NAMES = ("cache", "past_key_values")  # from transformers 5.24 on, and before


def cache_name(model) -> str:
    """The name of the argument of `model.forward`, and of the field of what it returns. A forward that hands all of its
    arguments on has that of the model inside: peft's, a subclass's."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else getattr(model, "base_model", None)
    found = (name for part in (model, inner) if part is not None for name in _NAMES if name in _parameters(part))
    return next(found, _NAMES[-1])


def arguments(model) -> Callable[[str], bool]:
    """Whether `model.forward` takes an argument of a name."""
    known = _parameters(model)
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    return lambda name: takes_all or name in known


def _parameters(model):
    return inspect.signature(model.forward).parameters
