# SPDX-License-Identifier: Apache-2.0
"""What became of a step, as the host knows it."""

from dataclasses import dataclass, field

from ..registry import STATUS_INVALID_ROW
from .step_times import StepTimes
from .transfers import Readback

__all__ = ["Outcome"]


@dataclass(frozen=True)
class Outcome:
    """A row or a number for each request."""

    drafted: list[int]  # tokens
    accepted: list[int]
    draft_seconds: float  # of the whole batch
    target_seconds: float  # scoring and verifying
    path: list[list[int]] | None = None  # of verify_tree
    emitted: list[list[int]] = field(default_factory=list)
    tested: list[int] = field(default_factory=list)
    status: list[int] = field(default_factory=list)
    # Whether the target's row after the accepted drafts was invalid: then no token follows them. An invalid row of the
    # draft is none of these: its drafts are rejected, and a token is drawn from the target's row.
    invalid: list[bool] = field(default_factory=list)

    def counts(self, i: int, emitted: int) -> tuple[int, int, int, int]:
        """drafted, tested, accepted and status of request i, whose text took over so many tokens: one that ends inside
        the draft has no use for the rest of it."""
        tested, accepted = self.tested[i], self.accepted[i]
        if emitted < len(self.emitted[i]):
            tested = accepted = emitted
        return self.drafted[i], tested, accepted, self.status[i]

    @classmethod
    def read(cls, proposal, verified, readback: Readback, times: StepTimes) -> "Outcome":
        """Read the step's results and all pending read-backs in one transfer, the step's only synchronisation. times:
        marked before and after drafting, scoring and verifying."""
        last = verified.logprobs.gather(1, verified.num_accepted[:, None].long())[:, 0]
        told = dict(
            drafted=(proposal.tokens >= 0).sum(1),
            accepted=verified.num_accepted,
            emitted=verified.tokens,
            tested=proposal.tested(verified),
            status=verified.status,
            invalid=last.isnan(),
        )
        if hasattr(verified, "path"):
            told["path"] = verified.path
        asked = {name: readback.ask(values) for name, values in told.items()}
        known = {name: reading.rows for name, reading in asked.items()}
        flagged = [bool(status & STATUS_INVALID_ROW) for status in known["status"]]
        known["invalid"] = [bool(nan) and flag for nan, flag in zip(known["invalid"], flagged)]
        ends = [a + 1 - bad for a, bad in zip(known["accepted"], known["invalid"])]
        known["emitted"] = [row[:end] for row, end in zip(known["emitted"], ends)]
        drafting, scoring, verifying = times.seconds()
        return cls(draft_seconds=drafting, target_seconds=scoring + verifying, **known)
