# SPDX-License-Identifier: Apache-2.0
"""transformers' stopping criteria as conditions of the decode loop, which end a row or the whole call."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["Criteria"]


class Criteria:
    """The criteria that ``generate`` has prepared.

    max_length and eos become fields of the requests. Stop strings are checked after each token of a row; the token that
    completes one is the row's last. max_time is checked after each step.

    Raises:
        ValueError: a criterion of another kind, or no max_length.
    """

    def __init__(self, op: str, criteria: Any):
        lengths: list[int] = []
        self.eos: tuple[int, ...] = ()
        self._strings: list[Any] = []
        self._times: list[Any] = []
        for criterion in criteria:
            kind = type(criterion).__name__
            if kind == "MaxLengthCriteria":
                lengths.append(int(criterion.max_length))
            elif kind == "EosTokenCriteria":
                self.eos += tuple(torch.as_tensor(criterion.eos_token_id, device="cpu").flatten().tolist())
            elif kind == "StopStringCriteria":
                self._strings.append(criterion)
            elif kind == "MaxTimeCriteria":
                self._times.append(criterion)
            else:
                wanted = "stopping_criteria must be max_length, eos, stop strings and max_time alone"
                raise ValueError(f"{op}: {wanted}, got {kind}")
        if not lengths:
            raise ValueError(f"{op}: stopping_criteria must hold max_length, got none")
        self.max_length = min(lengths)

    def taken(self, prompt: torch.Tensor, before: list[int], tokens: list[int]) -> int | None:
        """Return how many of a step's tokens a row takes, if one of them completes a stop string; None otherwise.

        prompt: [T], as ``generate`` passes it. before: the row's output before the step. tokens: those of the step.
        """
        if not self._strings:
            return None
        output = torch.tensor([*before, *tokens], dtype=prompt.dtype, device="cpu")
        ids = torch.cat([prompt.cpu(), output])[None]
        for n in range(1, len(tokens) + 1):
            so_far = ids[:, : len(prompt) + len(before) + n]
            if any(bool(criterion(so_far, None).all()) for criterion in self._strings):
                return n
        return None

    @property
    def over(self) -> bool:
        """Return whether max_time has passed."""
        any_ids = torch.zeros(1, 1, dtype=torch.int64, device="cpu")
        return any(bool(criterion(any_ids, None).all()) for criterion in self._times)
