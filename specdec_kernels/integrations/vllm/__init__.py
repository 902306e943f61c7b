# SPDX-License-Identifier: Apache-2.0
"""vLLM plugin that verifies drafts by these ops, turned on by the environment variable SPECDEC_VLLM=1.

vLLM calls ``register`` in each of its processes. docs/vllm.md lists what is replaced, what falls back to vLLM, and how
to see that the plugin is on.
"""

from __future__ import annotations

import os

import specdec_kernels

ON = ("1", "true", "yes", "on")
OFF = ("", "0", "false", "no", "off")


def register() -> None:
    """Replace vLLM's verification in this process, if SPECDEC_VLLM is on. A second call changes nothing.

    1, true, yes and on turn it on; 0, false, no, off, empty and unset turn it off, in lower or upper case. Any other
    value is off, with a warning. If vLLM's functions are not the known ones, nothing is replaced and a warning is
    logged.
    """
    given = os.environ.get("SPECDEC_VLLM", "")
    value = given.strip().lower()
    if value in ON:
        from specdec_kernels.integrations.vllm import patch

        patch.every()
    elif value not in OFF:
        from specdec_kernels.integrations.vllm.fallback import log

        ours = specdec_kernels.__version__
        words = ", ".join((*ON, *OFF[1:]))
        log.warning("specdec_kernels %s: SPECDEC_VLLM=%r is none of %s: vLLM is not patched", ours, given, words)
