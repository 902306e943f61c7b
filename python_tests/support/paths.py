# SPDX-License-Identifier: Apache-2.0
"""Where this tree and its tests lie, and what a process of its own needs to import them."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "python_tests"
FOLDERS = sorted({path.parent for path in TESTS.glob("*/test_*.py")})
PYTHONPATH = os.pathsep.join(map(str, [ROOT, TESTS, *FOLDERS]))
