# SPDX-License-Identifier: Apache-2.0
"""What extras of the installed package ask for, a line each: so that they can be installed without building it again.

python build_tools/extras.py dev docs
"""

import sys
from importlib.metadata import requires

from packaging.requirements import Requirement

for wanted in map(Requirement, requires("specdec_kernels") or ()):
    if wanted.marker and any(wanted.marker.evaluate({"extra": extra}) for extra in sys.argv[1:]):
        wanted.marker = None
        print(wanted)
