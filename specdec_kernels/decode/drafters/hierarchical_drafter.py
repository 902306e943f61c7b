# SPDX-License-Identifier: Apache-2.0
"""A draft model that is itself decoded speculatively, with drafts from something smaller."""

from dataclasses import replace

import torch
from torch.nn.utils.rnn import pad_sequence

import specdec_kernels as sk

from ...registry import RULES
from ..adaptive.draft_length import make_gamma
from ..interfaces import check_drafter, check_model
from ..limits import check_method
from ..outcome import Outcome
from ..proposal import Draft, Drafter
from ..result import Stats
from ..sequence import Batch, Sequence
from ..step_times import StepTimes
from ..transfers import upload_rows
from .draft_runner import DraftRunner

__all__ = ["HierarchicalDrafter"]

_MOST = 128  # drafted tokens, so at most 128 inner steps: a step's number takes eight bits of the random offset
_LEVELS = 3  # nested HierarchicalDrafters: a fourth one's eight bits would reach the sign of an int64


class _Ahead(Sequence):
    """A request with the tokens drafted for it so far, as the inner drafter sees it.

    Its rule is always "exact": drafted tokens are distributed as the draft model's own, whatever rule the request has
    for the target.
    """

    def __init__(self, sequence, limit: int):
        self.index, self.tokens, self._num_final = sequence.index, list(sequence.tokens), sequence.num_final
        self._begin, self._end = len(self.tokens), len(self.tokens) + limit
        self.request = sequence.request
        if self.request.rule != "exact":
            self.request = replace(self.request, rule="exact", alpha=None)

    @property
    def remaining(self) -> int:
        return self._end - len(self.tokens)

    @property
    def num_final(self) -> int:
        return self._num_final

    def end(self) -> None:
        """Stop drafting for this request."""
        self._end = len(self.tokens)

    @property
    def drafts(self) -> list[int]:
        return self.tokens[self._begin :]


class _Turn(Batch):
    """The batch of an inner step (a turn). batch: that of the outer step.

    Its random offset is the outer step's with the number of the turn in higher bits, so no random number is used twice.
    In a race the offset is the position alone, since all models share the noise of a position.
    """

    def __init__(self, ahead, batch: Batch, turn: int):
        super().__init__(ahead, batch.device, batch.first, batch.race)
        self.depth, self.readback = batch.depth + 1, batch.readback
        self._offset = super().offset if batch.race else batch.offset + ((turn + 1) << (24 + 8 * self.depth))

    @property
    def offset(self):
        return self._offset


class HierarchicalDrafter(Drafter):
    """Drafter whose model is itself decoded speculatively: an inner drafter proposes, and the model verifies.

    All tokens that the model emits, residual and bonus tokens too, form the draft for the target. Inner steps are
    repeated until there are `gamma` tokens; further tokens are dropped. Each drafted token is distributed exactly as
    the model's own. So the target verifies it against the model's row at its position, which is exact under every rule
    and for every inner drafter. The inner drafter may be a HierarchicalDrafter too. The number of inner steps depends
    on how many tokens each emits, so each inner step waits for the device once.

    Args:
        model: a Model (models/adapters.py), between the target and the inner drafter in size.
        drafter: a Drafter of chains for it: PromptLookupDrafter, ModelDrafter, LookupThenModel ...
        gamma, max_gamma: number of tokens handed to the target, as in ModelDrafter; at most 128.
        verify: "token" or "block", how the model verifies; in a session whose `verify` is "race" it is the race too.

    Raises:
        ValueError: a gamma outside 1..128, a drafter whose chains `verify` cannot verify, or four nested
            HierarchicalDrafters.

    Source:
        Spector & Re 2023 (staged speculative decoding); the factor is theory.hierarchical_factor.
    """

    rules = tuple(RULES)
    draws_viewed = True

    def __init__(self, model, drafter: Drafter, gamma: int | str = 8, max_gamma: int = 16, verify: str = "token"):
        check_model("HierarchicalDrafter", "model", model)
        check_drafter("HierarchicalDrafter", "drafter", drafter)
        self.gamma = make_gamma("HierarchicalDrafter", gamma, max_gamma)
        if self.gamma.max > _MOST:
            raise ValueError(f"HierarchicalDrafter: gamma must be at most {_MOST}, got {self.gamma.max}")
        self._levels: int = 1 + (drafter._levels if isinstance(drafter, HierarchicalDrafter) else 0)
        if self._levels > _LEVELS:
            raise ValueError(
                f"HierarchicalDrafter: drafter must be at most {_LEVELS - 1} HierarchicalDrafters deep, got {_LEVELS}"
            )
        if "exact" not in drafter.rules or not drafter.chains:
            raise ValueError(f"HierarchicalDrafter: drafter must draft chains that can be verified, got {drafter.name}")
        if verify not in ("token", "block"):  # the race is the session's choice: all models run it, or none
            raise ValueError(f"HierarchicalDrafter: verify must be 'token' or 'block', got {verify!r}")
        check_method("HierarchicalDrafter", drafter, verify)
        self.verifies = ("token", "block", *(method for method in drafter.verifies if method == "race"))
        self.model, self.drafter, self.method = DraftRunner(model, self.gamma.max + 1), drafter, verify
        self.parts, self.num_lookahead = (self.model, drafter), 2 * self.gamma.max + drafter.num_lookahead + 1

    def begin(self, slots, capacity):
        self.stats = Stats()  # of the inner steps, in which the model is the target
        super().begin(slots, capacity)

    def follow(self, target, cache):
        """Do nothing: the model reads no states, since it scores several drafts in a pass before any has one."""

    def check(self, target, sequences):
        self.drafter.check(self.model.model, [_Ahead(s, 0) for s in sequences])

    def propose(self, batch, wanted=None):
        """Draft for the batch. wanted [n] bool: the requests to draft for; None: all."""
        room = [max(0, s.remaining - 1) if wanted is None or wanted[i] else 0 for i, s in enumerate(batch)]
        length = self.gamma.limit(len(batch), sum(r > 0 for r in room))
        limits = [min(length, r) for r in room]
        if max(limits) == 0 and not batch.wants_end_row:
            return None
        ahead = [_Ahead(s, limit) for s, limit in zip(batch, limits)]
        rows: list[list[torch.Tensor]] = [[] for _ in batch]
        turns = 0
        while any(s.remaining for s in ahead):
            logits, outcome = self._turn(_Turn(ahead, batch, turns))
            turns += 1
            for i, (s, own, row) in enumerate(zip(ahead, rows, logits)):
                if s.remaining:
                    own.append(row[: self._take_over(s, outcome, i)])
        if not any(s.drafts for s in ahead) and not batch.wants_end_row:
            return None
        if batch.wants_end_row:
            last = self.model.score(_Turn(ahead, batch, turns), Draft.nothing(batch).tokens)
            for own, row in zip(rows, self.model.by_target_id(last)):
                own.append(row)
        tokens = upload_rows([s.drafts for s in ahead], batch.device)
        return Draft(tokens, None if batch.race else sk.Rows(_stacked(rows), **batch.sampling), viewed=True)

    def observe(self, outcome):
        self.gamma.observe(outcome)

    def _take_over(self, ahead: _Ahead, outcome: Outcome, i: int) -> int:
        """Append a turn's tokens for request i, and return their number. End tokens and invalid rows end a draft."""
        tokens = outcome.emitted[i][: ahead.remaining]
        end = next((at for at, token in enumerate(tokens, 1) if token in ahead.request.eos), None)
        tokens = tokens[:end]
        ahead.tokens += tokens
        if end is not None or outcome.invalid[i]:
            ahead.end()
        self.stats.new_tokens += len(tokens)
        self.stats.count(*outcome.counts(i, len(tokens)), needed_target=True)
        return len(tokens)

    def _turn(self, batch) -> tuple[torch.Tensor, Outcome]:
        """Take one speculative step of the model -> its rows [n, g + 1, V] and the step's outcome."""
        times = StepTimes(batch.device)
        proposal = self.drafter.propose(batch) or Draft.nothing(batch)
        batch.views.check(proposal)
        times.mark()
        logits = self.model.by_target_id(self.model.score(batch, proposal.tokens))
        times.mark()
        verified = proposal.verify(logits, batch, "race" if batch.race else self.method, None)
        times.mark()
        outcome = Outcome.read(proposal, verified, batch.readback, times)
        self.drafter.observe(outcome)
        self.stats.spend(*times.seconds())
        self.stats.target_calls += 1
        return logits, outcome


def _stacked(rows: list[list[torch.Tensor]]) -> torch.Tensor:
    """Stack each request's rows [m, V] to [n, width, V]; shorter ones are padded with zeros, which are never read."""
    nothing = next(own[0] for own in rows if own)[:0]
    return pad_sequence([torch.cat([nothing, *own]) for own in rows], batch_first=True)
