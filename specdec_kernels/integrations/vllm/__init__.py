# SPDX-License-Identifier: Apache-2.0
"""vLLM verifies its drafts by these ops: a general plugin that the environment variable SPECDEC_VLLM=1 turns on.

vLLM calls ``register`` in each of its processes. docs/vllm.md says what is replaced, what goes vLLM's own way, and how
to see that it is on.
"""

from __future__ import annotations

import os


def register() -> None:
    """Replaces vLLM's verification in this process, if SPECDEC_VLLM is 1. A second call does nothing.

    Of a vLLM whose functions are not those that this plugin knows nothing is replaced, and a warning says so.
    """
    if os.environ.get("SPECDEC_VLLM") == "1":
        from specdec_kernels.integrations.vllm import patch

        patch.samplers()
