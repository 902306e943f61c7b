# SPDX-License-Identifier: Apache-2.0
"""The folders of this tree and its tests, and the PYTHONPATH that a new process needs to import them."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "python_tests"
FOLDERS = sorted({path.parent for path in TESTS.glob("*/test_*.py")})
PYTHONPATH = os.pathsep.join(map(str, [ROOT, TESTS, *FOLDERS]))
