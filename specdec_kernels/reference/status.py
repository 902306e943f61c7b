# SPDX-License-Identifier: Apache-2.0
"""The bits of `status`."""

INVALID_ROW, EMPTY_RESIDUAL, INVALID_DRAFT, INVALID_BONUS = 1, 2, 4, 8
