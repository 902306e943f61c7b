# SPDX-License-Identifier: Apache-2.0
import sys

from specdec_kernels.cli import main

sys.exit(main())
