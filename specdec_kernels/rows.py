# SPDX-License-Identifier: Apache-2.0
"""Rows: the logits of one side, and how they are sampled from."""

from __future__ import annotations

from typing import NamedTuple

import torch

from specdec_kernels.allowed import Allowed
from specdec_kernels.bias import Bias
from specdec_kernels.penalties import Penalties
from specdec_kernels.vocab_map import VocabMap


class Rows(NamedTuple):
    """The rows of one side, target or draft, and how they are sampled from. A plain tensor is ``Rows(tensor)``.

    It holds references only: nothing is copied, checked or launched when it is made. As a NamedTuple it passes through
    torch.compile, torch.export and pytrees, and ``rows._replace(temperature=0.7)`` changes one field.

    Args:
        logits: float32, bfloat16 or float16, as the model wrote them; each op states the shape it takes, [N, V] or
            [B, positions, V]. Rows may have any stride; the entries of a row must be adjacent in memory. If ``kind`` is
            "probs", they are probabilities.
        temperature: T > 0, or 0 for greedy; a subnormal T, below 2^-126, counts as 0. None (T = 1), a number, or a
            float32 tensor with one value per row (in verification: per request). A call may mix greedy and sampled
            rows. Here and in the filters a number may be numpy's.
        top_k: keep the k largest; 0 or -1 is off. None, an int, or an int32 or int64 tensor.
        top_p: keep the smallest set of largest probabilities whose sum reaches top_p, in (0, 1]; 1 is off.
        min_p: keep p(v) >= min_p * max p, in [0, 1]; 0 is off.
        top_n_sigma: keep logits >= max - top_n_sigma * sigma, finite and >= 0; 0 is off. sigma is the population
            standard deviation. Both max and sigma are of the row's finite logits before the temperature, so a
            temperature does not change which ids stay. https://arxiv.org/abs/2411.07641
        stats: float32 [..., 4] from ``row_stats`` or ``sample``, in place of the five parameters above. With stats, an
            op needs no pass over a row for its normaliser. It still reads the row to sum over it or to draw from it.
        kind: "logits" or "probs". Rows of probabilities take no stats and no parameters, except a temperature that is
            the number 0 (verification by the exact rule): all mass is then on the largest entry, with the lowest id
            on ties. A negative entry counts as 0.
        row: int32 or int64, the index of each position's row, for ``verify_chain``, ``verify_tree`` and ``support``,
            which state its shape. Rows are not copied, and rows that no position uses are not read.
        penalties: ``Penalties`` on tokens that were used before.
        bias: ``Bias``, values that are added to some logits.
        allowed: ``Allowed``, masks of the ids that may be sampled.
        ids: int32 or int64, of the shape of ``logits``, [..., E]: the rows are sparse, and entry j stands for the token
            id ids[..., j]. The ids may be in any order. An entry with a negative id is ignored. An id of 2^24 or more
            raises on the CPU; on a GPU its entry is ignored. Only for draft rows.
        vocab_map: ``VocabMap`` with a target id for each draft id: entry j of a row stands for the target id of draft
            id j. If ``ids`` are given too, they are draft ids, and each call converts them (a few small launches on a
            GPU); an id outside the map is ignored. The map's V is not compared with the target's. Only for draft rows.

    An op applies, in this order: bias, penalties, mask, temperature, top-n-sigma, min-p, top-k, then top-p over the ids
    that remain. Each filter is exact, without sorting the vocabulary. All ids that tie at a cutoff are kept. Filters do
    not change greedy rows.

    Stats are those of the row after its bias, penalties and mask, but they do not contain these: pass bias, penalties
    and mask along with the stats. ``row_gap``, ``kseq_rho`` and ``stack_rows`` raise if a side has one of the three.

    Rows with ``ids`` or ``vocab_map`` are distributions over target ids. Temperature and filters act on their entries
    one by one. The probabilities of entries with the same id are then added, and an id without an entry has
    probability 0. The ids in bias, penalties and masks, the drafted tokens and the tokens that an op returns are target
    ids. Sparse and mapped rows of probabilities are not normalised, and need not sum to 1.

    Example:
        >>> z = torch.tensor([[5.0, 3.0, 2.0]]).log()
        >>> specdec_kernels.sample(Rows(z, temperature=0.0)).tokens
        tensor([[0]])
    """

    logits: torch.Tensor
    temperature: float | torch.Tensor | None = None
    top_k: int | torch.Tensor | None = None
    top_p: float | torch.Tensor | None = None
    min_p: float | torch.Tensor | None = None
    top_n_sigma: float | torch.Tensor | None = None
    stats: torch.Tensor | None = None
    kind: str = "logits"
    row: torch.Tensor | None = None
    penalties: Penalties | None = None
    bias: Bias | None = None
    allowed: Allowed | None = None
    ids: torch.Tensor | None = None
    vocab_map: VocabMap | None = None
