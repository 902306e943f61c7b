# SPDX-License-Identifier: Apache-2.0
"""Steps that go vLLM's own way: each is counted by its reason, and a reason is logged where it occurs first."""

from __future__ import annotations

import functools
import logging
from collections import Counter

import specdec_kernels

log = logging.getLogger("vllm.specdec_kernels")  # vLLM shows what is logged under its own name
steps: Counter[str] = Counter()  # of this process, by reason


def note(reason: str) -> None:
    """A step goes vLLM's own way for this reason."""
    steps[reason] += 1
    if steps[reason] == 1:
        log.info("specdec_kernels %s: steps with this go vLLM's own way: %s", specdec_kernels.__version__, reason)


@functools.cache
def no_speculation() -> None:
    """This process serves an engine that does not speculate, which is logged once."""
    text = "specdec_kernels %s is on, but this engine does not speculate (no speculative_config): nothing to verify"
    log.info(text, specdec_kernels.__version__)
