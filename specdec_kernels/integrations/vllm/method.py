# SPDX-License-Identifier: Apache-2.0
"""The option SPECDEC_VLLM_METHOD."""

from __future__ import annotations

import os

METHODS = ("", "race")  # empty: vLLM's rejection_sample_method


def method() -> str:
    """Return the option's value, in lower case."""
    return os.environ.get("SPECDEC_VLLM_METHOD", "").strip().lower()


def races() -> bool:
    """Return whether every token is drawn by the race."""
    return method() == "race"
