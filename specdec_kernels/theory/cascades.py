# SPDX-License-Identifier: Apache-2.0
"""Deferral rate of speculative cascades (Narasimhan et al. 2024, "Faster Cascades via Speculative Decoding")."""

import torch

from .rows import float64_rows

__all__ = ["deferral_rate"]


def deferral_rate(p: torch.Tensor, q: torch.Tensor, rule: str, alpha=None, p1=None, q1=None) -> torch.Tensor:
    """Return the probability that a speculative cascade defers a token drafted from q to the target.

    Args:
        p, q: [..., V] and [..., Vq] probabilities.
        rule, alpha: a rule of specdec_kernels.rules and its parameter.
        p1, q1: the same rows unscaled (temperature 1, no filters), by default p and q.

    Returns:
        [...] float64, row by row: 0 or 1 under a rule that defers whole rows ("chow" ... "opt_log"); under "token_v1"
        ... "token_v3" the mass eta of the tokens that are not kept.

    Raises:
        TypeError, ValueError: a rule that is not a cascade, an alpha outside its range, rows of another dtype or shape.

    Example:
        >>> p, q = torch.tensor([.5, .3, .2]).double(), torch.tensor([.2, .5, .3]).double()
        >>> [round(deferral_rate(p, q, rule, 0.45).item(), 6) for rule in ("chow", "diff", "token_v1", "token_v3")]
        [1.0, 0.0, 0.0, 0.3]

    Source:
        Narasimhan et al. 2024.
    """
    from ..reference.rules import mix_of, resolved
    from ..reference.rules.one_step import pair_of

    op = "deferral_rate"
    cascades = ("chow", "chow_log", "diff", "diff_log", "opt", "opt_log", "token_v1", "token_v2", "token_v3")
    if rule not in cascades:
        raise ValueError(f"{op}: rule must be one of {', '.join(map(repr, cascades))}, got {rule!r}")
    _, alpha = resolved(op, "token", rule, alpha)
    rows = [float64_rows(op, *pair, 1) for pair in ((p, q), (p if p1 is None else p1, q if q1 is None else q1))]
    flat = [x.reshape(-1, x.size(-1)).numpy() for pair in rows for x in pair]
    out = [float(mix_of(pair_of(*each), rule, alpha).a) for each in zip(*flat)]
    return torch.tensor(out, dtype=torch.float64, device="cpu").reshape(p.shape[:-1])
