# SPDX-License-Identifier: Apache-2.0
"""The package's files in the user's cache: unpacked models (decode/models/unpacked.py)."""

import os
import shutil
from pathlib import Path

__all__ = ["clear", "entries", "folder"]


def folder() -> Path:
    """Return the folder that SPECDEC_CACHE names, or else this package's folder in the user's cache."""
    if given := os.environ.get("SPECDEC_CACHE"):
        return Path(given)
    import platformdirs  # imported here, since the decode loop must also run where it is not installed

    return Path(platformdirs.user_cache_dir("specdec_kernels"))


def entries() -> dict[Path, int]:
    """Return {folder: its size in bytes}, including unfinished folders of processes that died."""
    found = sorted(path for path in folder().glob("*") if path.is_dir())
    return {path: sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) for path in found}


def clear() -> None:
    """Remove all folders. A process that has mapped a file into memory keeps the file's contents until it ends."""
    for path in entries():
        shutil.rmtree(path)
