# SPDX-License-Identifier: Apache-2.0
"""The old names of what is now in demo/; kept for one release."""

import runpy
import sys


def moved(module: str) -> None:
    """Says where the command has gone, and runs it: `python -m bench.demo.run` is `python -m demo.run` now."""
    new = module.removeprefix("bench.")
    print(f"python -m {module} is now python -m {new}; the old name works for one more release", file=sys.stderr)
    runpy.run_module(new, run_name="__main__", alter_sys=True)
