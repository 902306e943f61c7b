# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import NamedTuple

import torch

from specdec_kernels.ops import _call, _check, _pair
from specdec_kernels.ops._fake import fake
from specdec_kernels.rows import Rows

_kseq_rho = _call.op("kseq_rho")


class KSeqRhoOutput(NamedTuple):
    rho: torch.Tensor
    beta: torch.Tensor
    p_acc: torch.Tensor


def kseq_rho(p: Rows | torch.Tensor, q: Rows | torch.Tensor, k: int | torch.Tensor) -> KSeqRhoOutput:
    """Return the best rho of K-SEQ selection for each pair of rows: k i.i.d. drafts from q, verified against p.

    K-SEQ accepts the first draft x with u * rho * q(x) < p(x), and otherwise draws from norm((p - rho q)+). Let
    beta(rho) = sum min(q, p / rho). The emitted token follows p if f(rho) = 1 - (1 - beta)^k - rho * beta <= 0. The
    smallest such rho in [1, k] accepts most often, and is returned as precisely as float32 weights allow, always on the
    side where f <= 0. Each row is first divided by its sum.

    Args:
        p: [N, V] target rows, ``Rows`` or a tensor. Logits: with their stats [N, 4], or with sampling parameters, each
            a number or [N]. Probabilities: a negative one, also -inf, counts as 0.
        q: [N, Vq] draft rows of the same kind. An id without an entry has no mass. A probability outside [0, 1 + 1e-3]
            counts as 0. Sparse rows: ``ids`` [N, E] with entries [N, E]. Mapped rows: ``vocab_map``.
        k: the number of drafts, >= 1: an int, or [N] int32 / int64. On a GPU, less than 1 in a tensor counts as 1.

    Returns:
        KSeqRhoOutput, float64: rho [N] in [1, k]; beta [N], the probability that a draft is accepted; p_acc [N] =
        1 - (1 - beta)^k, the probability that one of k drafts is. A pair with an invalid row (NaN, inf, no mass)
        gives rho = k, which is valid for every pair of distributions, and beta = p_acc = NaN.

    Raises:
        TypeError, ValueError: naming the argument, what was wanted and what came. On the CPU, less than 1 in
        a tensor k raises.

    Example:
        >>> p, q = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.2, 0.5, 0.3]])
        >>> [round(x.item(), 4) for x in kseq_rho(Rows(p, kind="probs"), Rows(q, kind="probs"), 2)]
        [1.4568, 0.5432, 0.7914]

    Source: Sun et al. 2023, "SpecTr: Fast Speculative Decoding via Optimal Transport", K-SEQ (Algorithm 3 and its p*;
    there p is the draft's distribution and q the target's).
    """
    op = "kseq_rho"
    *sides, ids = _pair.sides(op, p, q)
    if not isinstance(k, torch.Tensor):
        k = _check.integer(op, "k", k, 1, (1 << 63) - 1, ">= 1 and below 2^63", "an int or a tensor")
        k = torch.full((1,), k, dtype=torch.int64, device=sides[0].device)
    return KSeqRhoOutput(*_kseq_rho(*sides, k, *ids))


@fake("kseq_rho")
def _(p):
    return tuple(p.new_empty((p.size(0),), dtype=torch.float64) for _ in range(3))
