# SPDX-License-Identifier: Apache-2.0
"""The bits of `status`."""

from ..registry import STATUS_EMPTY_RESIDUAL as EMPTY_RESIDUAL
from ..registry import STATUS_HISTORY_FULL as HISTORY_FULL
from ..registry import STATUS_INVALID_BONUS as INVALID_BONUS
from ..registry import STATUS_INVALID_DRAFT as INVALID_DRAFT
from ..registry import STATUS_INVALID_ROW as INVALID_ROW

__all__ = ["EMPTY_RESIDUAL", "HISTORY_FULL", "INVALID_BONUS", "INVALID_DRAFT", "INVALID_ROW"]
