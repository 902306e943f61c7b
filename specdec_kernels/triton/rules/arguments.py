# SPDX-License-Identifier: Apache-2.0
"""`rule` and `alpha` of torch.ops.specdec.*, as kernels take them (csrc/binding/rule_arguments.h)."""

from __future__ import annotations

from ..core import arguments
from ..core.row import Values
from .rule import Alpha, Rules

NAN = float("nan")


def rules_of(rule, alpha, numbers) -> Rules:
    """rule [B] or [1] and alpha [B] or [B, 2], or of a chain's G positions [B, G, 1] or [B, G, 2]; or numbers."""
    code, *of_alpha = arguments.numbers(numbers, 3)
    codes = arguments.values(rule) if code is None else Values(code, None)
    if of_alpha != [None, None]:
        return Rules(codes, Alpha(*(NAN if x is None else x for x in of_alpha)), None, False, False)
    if alpha is None or not alpha.numel():
        return Rules(codes, None, None, False, False)
    each, pairs, positions = alpha.size(0) != 1, alpha.dim() > 1 and alpha.size(-1) == 2, alpha.dim() == 3
    return Rules(codes, (alpha.transpose(0, 1) if positions else alpha).contiguous(), each, pairs, positions)
