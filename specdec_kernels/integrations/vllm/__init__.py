# SPDX-License-Identifier: Apache-2.0
"""vLLM verifies its drafts by these ops: a general plugin that the environment variable SPECDEC_VLLM=1 turns on.

vLLM calls ``register`` in each of its processes. docs/vllm.md says what is replaced, what goes vLLM's own way, and how
to see that it is on.
"""

from __future__ import annotations

import os

import specdec_kernels

ON = ("1", "true", "yes", "on")
OFF = ("", "0", "false", "no", "off")


def register() -> None:
    """Replaces vLLM's verification in this process, if SPECDEC_VLLM is on. A second call does nothing.

    On is 1, true, yes or on; off is 0, false, no, off, empty or unset; upper case too. Another value is off, with a
    warning. Of a vLLM whose functions are not those that this plugin knows nothing is replaced, and a warning says so.
    """
    given = os.environ.get("SPECDEC_VLLM", "")
    value = given.strip().lower()
    if value in ON:
        from specdec_kernels.integrations.vllm import patch

        patch.samplers()
    elif value not in OFF:
        from specdec_kernels.integrations.vllm.own_way import log

        ours = specdec_kernels.__version__
        words = ", ".join((*ON, *OFF[1:]))
        log.warning("specdec_kernels %s: SPECDEC_VLLM=%r is none of %s: vLLM is not patched", ours, given, words)
