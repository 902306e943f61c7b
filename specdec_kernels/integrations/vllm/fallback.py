# SPDX-License-Identifier: Apache-2.0
"""Record of steps that fall back to vLLM's own code, counted by reason. Each reason is logged once."""

from __future__ import annotations

import functools
import logging
from collections import Counter

import specdec_kernels
from specdec_kernels.integrations.vllm.method import races

log = logging.getLogger("vllm.specdec_kernels")  # vLLM shows logs of loggers below its own name
steps: Counter[str] = Counter()  # number of steps in this process, by reason
LEFT = "left: "
unsent: Counter[str] = Counter()  # counts that `metrics` has not reported yet; LEFT + reason: these steps


def note(reason: str, step: str = "") -> None:
    """Count a step that falls back for this reason. The first time, log the reason and the description `step`."""
    steps[reason] += 1
    unsent[LEFT + reason] += 1
    if steps[reason] == 1:
        detail = f" ({step})" if step else ""
        text = "specdec_kernels %s: steps with this fall back to vLLM: %s%s"
        log.info(text, specdec_kernels.__version__, reason, detail)


@functools.cache
def no_speculation() -> None:
    """Log once that this process serves an engine without speculation, unless it draws by the race."""
    if races():
        return
    text = "specdec_kernels %s is on, but this engine does not speculate (no speculative_config): nothing to verify"
    log.info(text, specdec_kernels.__version__)
