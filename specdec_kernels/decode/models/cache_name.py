# SPDX-License-Identifier: Apache-2.0
"""What a transformers model calls its cache: ``past_key_values``, or ``cache`` from 5.24 on."""

import inspect


def cache_name(model) -> str:
    """The name of the argument of `model.forward`, and of the field of what it returns."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
