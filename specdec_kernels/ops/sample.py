# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import NamedTuple

import torch

from specdec_kernels.ops import _call, _check, _rows
from specdec_kernels.ops._fake import fake
from specdec_kernels.rows import Rows

_sample = _call.op("sample")


class SampleOutput(NamedTuple):
    tokens: torch.Tensor  # [N, k] int64
    logprobs: torch.Tensor  # [N, k] float32, ln q of each token
    rows: Rows  # the rows with their stats [N, 4] float32, as verification takes them


def sample(
    rows: Rows | torch.Tensor,
    k: int = 1,
    replacement: bool = True,
    *,
    seed: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    slot: int | torch.Tensor = 0,
    uniforms: torch.Tensor | None = None,
    num_rows: torch.Tensor | None = None,
    race: bool = False,
) -> SampleOutput:
    """Draw k tokens from each row, as a draft model does.

    The output's ``rows`` hold the stats: give them to verification, which then need not read a draft row to find its
    normaliser. A draw inverts the CDF: it takes the first id with mass whose running sum exceeds u * total.

    A race gives each id Gumbel noise, which depends only on the seed, the absolute position and the id, and returns the
    k ids with the largest ln q + noise, the largest first. After the stats it reads each row once more.
    ``verify_chain`` and ``verify_tree`` with method "race" run the same race on the target's row, and accept a draft
    that wins it.

    Args:
        rows: [N, V], ``Rows`` of logits with sampling parameters, each a number or [N], or with their stats [N, 4]; or
            a tensor: the rows as they are. A temperature of 0, or a subnormal one, gives the argmax. Penalties: [N] or
            numbers, lists [S, H] with ``penalties.row`` [N], ``penalties.drafted`` [N, n]. Bias: lists [S, I] with
            ``bias.row`` [N]. Masks: [S, W] with ``allowed.row`` [N]. Sparse draft rows: ``ids`` [N, E] with logits
            [N, E]. Mapped draft rows: ``vocab_map``. The tokens of sparse and mapped rows are target ids.
        k: draws per row, 0 to 2^33. RuntimeError if the results do not fit in memory.
        replacement: True draws i.i.d. False draws each token from the ids not drawn yet, renormalised, however small
            their mass. Once no id with mass is left it gives -1, with logprob -inf.
        seed, offset: [N] int64, or [1] for all rows. Draw i uses slot ``slot + i`` of the draft domain (see
            ``uniforms``). With ``race``, ``offset`` is the absolute position of the drafted token: draft i of a step
            (0, 1, ...) has verification's ``offset`` plus i. Without ``offset``, ``seed`` [N] holds a noise key for
            each row: key K gives the noise of seed K at position 0. Neither is needed if the rows' temperature is the
            number 0.
        slot: an int in [0, 2^33), or [N] int32 / int64. Only the low 33 bits of ``slot`` and ``slot + i`` are used. A
            drafter that draws position j of a step passes j * k. Must be 0 with ``race``.
        uniforms: [N, k] float64 in [0, 1), in place of seed and offset. Values outside count as the nearer end, NaN
            as 0. Not with ``race``.
        num_rows: as in ``row_stats``.
        race: True draws by a race, as described above. The k tokens are distinct, whatever ``replacement`` is. If fewer
            ids have mass, -1 follows, with logprob -inf. Ties go to the lowest id.

    Returns:
        SampleOutput: tokens [N, k] int64; logprobs [N, k] float32, ln q of each token in the whole row, also without
        replacement; rows, the logits with their stats [N, 4] float32 in place of sampling parameters. A row with NaN,
        +inf or no finite entry gives its largest finite entry with logprob NaN, or token 0 if no entry is finite. An
        absent row has tokens -1, logprobs 0 and four zeros as stats.
        For sparse and mapped rows, the running sum takes the entries in their order, and q of a token is the sum over
        all its entries. Without replacement a draw removes all of them.

    Raises:
        TypeError, ValueError: naming the argument, what was wanted and what came.

    Example:
        >>> z = torch.tensor([[5.0, 3.0, 2.0]]).log()
        >>> sample(z, uniforms=torch.tensor([[0.6]], dtype=torch.float64)).tokens
        tensor([[1]])

    Source: Leviathan et al. 2023, section 2.3 (the draft); without replacement as in Sequoia (Chen et al. 2024); race:
    Daliri et al. 2024 (Gumbel coupling).
    """
    op = "sample"
    logits, sampling, stats, _, views = _rows.of_logits(op, "rows", rows, takes_ids=True)
    k = _check.integer(op, "k", k)
    replacement = _check.flag(op, "replacement", replacement)
    race = _check.flag(op, "race", race)
    _check.randomness(op, seed, offset, uniforms, _rows.is_greedy(rows), race)
    first_slot = 0
    if not isinstance(slot, torch.Tensor):
        first_slot, slot = _check.integer(op, "slot", slot, kind="an int or a tensor"), None
    by = (seed, offset, slot, first_slot, _check.contiguous(uniforms), num_rows, race)
    tokens, logprobs, stats = _sample(logits, *sampling, stats, k, replacement, *by, *views)
    return SampleOutput(tokens, logprobs, _rows.of_stats(rows, logits, stats))


@fake("sample")
def _(logits, k):
    n = logits.size(0)
    return (
        logits.new_empty((n, k), dtype=torch.int64),
        logits.new_empty((n, k), dtype=torch.float32),
        logits.new_empty((n, 4), dtype=torch.float32),
    )
