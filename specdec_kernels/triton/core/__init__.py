# SPDX-License-Identifier: Apache-2.0
"""What every op is made of: rows and their four floats, sums over chunks, random numbers, residuals, launches."""

from . import mended as mended
