# SPDX-License-Identifier: Apache-2.0
"""The environment of a process that runs vLLM on the CPU, in benchmarks and tests."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["of_vllm"]


def of_vllm(on: str | bool, folder: Path | None = None, processes: str = "0") -> dict[str, str]:
    """Return this process's environment with the variables of vLLM.

    Args:
        on: whether the plugin is on, or a value of SPECDEC_VLLM.
        folder: the environment that ``make vllm-cpu`` makes, whose OpenMP library is then loaded first, as vLLM
            advises. None: LD_PRELOAD stays as it is.
        processes: "1": the engine runs in a process of its own.
    """
    own = {
        "SPECDEC_VLLM": on if isinstance(on, str) else str(int(on)),
        "VLLM_ENABLE_V1_MULTIPROCESSING": processes,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    preload = {} if folder is None else {"LD_PRELOAD": str(folder / "lib" / "libiomp5.so")}
    return os.environ | own | preload
