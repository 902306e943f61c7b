# SPDX-License-Identifier: Apache-2.0
"""The environment variable SPECDEC_VLLM_METHOD."""

from __future__ import annotations

import os

METHODS = ("", "race")  # "": the method is vLLM's rejection_sample_method


def method() -> str:
    """Return the variable's value in lower case, "" if it is unset."""
    return os.environ.get("SPECDEC_VLLM_METHOD", "").strip().lower()


def races() -> bool:
    """Return whether every token is drawn by the race."""
    return method() == "race"
