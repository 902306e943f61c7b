# SPDX-License-Identifier: Apache-2.0
"""The parts that the ops share: rows and their four floats, sums over chunks, random numbers, residuals, launches."""

from . import mended as mended
