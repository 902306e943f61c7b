# SPDX-License-Identifier: Apache-2.0
"""What this package keeps on a user's machine: models that were unpacked once (decode/models/unpacked.py)."""

import os
import shutil
from pathlib import Path

__all__ = ["clear", "entries", "folder"]


def folder() -> Path:
    """SPECDEC_CACHE, or this package's folder in the user's cache."""
    if given := os.environ.get("SPECDEC_CACHE"):
        return Path(given)
    import platformdirs  # here, so that the decode loop does without it, as on a GPU machine that fetches nothing

    return Path(platformdirs.user_cache_dir("specdec_kernels"))


def entries() -> dict[Path, int]:
    """folder -> its bytes; what a process that died has left unfinished is among them."""
    found = sorted(path for path in folder().glob("*") if path.is_dir())
    return {path: sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) for path in found}


def clear() -> None:
    """Remove them all. A process that has one of them mapped keeps it until it ends."""
    for path in entries():
        shutil.rmtree(path)
