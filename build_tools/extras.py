# SPDX-License-Identifier: Apache-2.0
"""Print the requirements of extras of the installed package, one per line. They can be installed without a build.

python build_tools/extras.py dev docs
"""

import sys
from importlib.metadata import requires

from packaging.requirements import Requirement

for wanted in map(Requirement, requires("specdec_kernels") or ()):
    if wanted.marker and any(wanted.marker.evaluate({"extra": extra}) for extra in sys.argv[1:]):
        wanted.marker = None
        print(wanted)
