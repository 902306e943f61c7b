# SPDX-License-Identifier: Apache-2.0
"""Thinking budgets of vLLM's V1 runner: the rows whose token is forced, as vLLM's own code determines them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from specdec_kernels.integrations.vllm.upload import on


class Forced(NamedTuple):
    """Rows of the step's logits [R, V] that must emit a given token."""

    row: torch.Tensor  # [F] int64
    ids: torch.Tensor  # [F] int64


class Places:
    """Takes the place of rows of logits, and records the entries that vLLM sets to a large number to force a token."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.shape = (rows,)
        self.device = device
        self.row: list[torch.Tensor] = []
        self.ids: list[torch.Tensor] = []

    def new_full(self, size: Any, value: float) -> None:
        """Return None in place of values to write, since only their places are recorded."""

    new_tensor = is_contiguous = lambda self, *given: None  # on ROCm vLLM then writes entries one by one

    def index_put_(self, places: tuple[torch.Tensor, torch.Tensor], value: None) -> None:
        self.row.append(places[0])
        self.ids.append(places[1])

    def __setitem__(self, place: tuple[int, int], value: None) -> None:
        self.index_put_(tuple(on([x], self.device) for x in place), value)  # type: ignore[arg-type]


def forced(scheduled: Any, sampling_metadata: Any) -> Forced | None:
    """Return the rows that thinking budgets force in this step; None if there are none.

    As vLLM's samplers do, it advances the budgets' state by this step. Under speculation it does so for the bonus rows
    and then for the others, otherwise for all rows at once.
    """
    holder = getattr(sampling_metadata, "thinking_budget_state_holder", None)
    if holder is None or not holder.has_tracked_requests():
        return None
    drafts = sampling_metadata.spec_token_ids
    holder.update_state(sampling_metadata.output_token_ids, drafts, repeat_indices=None)
    row, ids = [], []
    calls = [(True, scheduled.bonus_logits_indices), (False, scheduled.target_logits_indices)]
    if not holder.in_spec_mode:  # a call for bonus rows would change the state of an engine without speculation
        calls = [(False, scheduled.bonus_logits_indices)]
    for is_bonus, rows in calls:
        places = Places(rows.size(0), rows.device)
        holder.apply_to_logits(places, is_bonus, drafts)
        row += [rows[x].to(torch.int64) for x in places.row]
        ids += [x.to(torch.int64) for x in places.ids]
    return Forced(torch.cat(row), torch.cat(ids)) if row else None
